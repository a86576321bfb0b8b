// Puts kvbench's page into its tab of Locust's UI, and fits the start form: the plan decides what is
// sent when, so the number of users is not asked for.
(() => {
  "use strict";
  const frame = document.createElement("iframe");
  frame.title = "kvbench";
  frame.id = "kvbench-frame";
  frame.style.cssText = "display:none;border:0;width:100%;min-height:70vh";

  function ours() {
    return new URLSearchParams(location.search).get("tab") === "kvbench" &&
      document.querySelector("[role=tab]") !== null;
  }

  function field(name) {
    const input = document.querySelector(`form [name=${name}]`);
    return input && input.closest(".MuiFormControl-root");
  }

  function style(name, styles) {
    const found = field(name);
    if (found) Object.assign(found.style, styles);
  }

  // An empty choice has no words of its own, and its label lies on the frame's line.
  function nameNothing() {
    const found = field("workload"), card = found && found.closest(".MuiAccordion-root");
    if (!card) return;
    const empty = found.querySelector('option[value=""]'), label = found.querySelector("label");
    if (empty && !empty.textContent) empty.textContent = "none: replay a trace";
    if (label) Object.assign(label.style, { background: getComputedStyle(card).backgroundColor, padding: "0 4px" });
  }

  function place() {
    const tabs = document.querySelector("[role=tablist]");
    const shown = ours();
    if (tabs && shown) {
      const box = tabs.closest("main, .MuiContainer-root") || document.getElementById("root");
      if (frame.parentElement !== box) box.append(frame);
      if (!frame.src) frame.src = "./kvbench/";
      const inner = frame.contentDocument && frame.contentDocument.documentElement;
      if (inner && frame.contentDocument.body) {
        const ground = getComputedStyle(document.body).backgroundColor.match(/\d+/g) || [255];
        inner.dataset.theme = Number(ground[0]) < 128 ? "dark" : "light";
        const height = frame.contentDocument.body.scrollHeight + 24;
        if (Math.abs(frame.clientHeight - height) > 8) frame.style.height = `${height}px`;
      }
    }
    frame.style.display = shown ? "block" : "none";
    for (const name of ["userCount", "spawnRate"]) style(name, { display: "none" });
    style("workload", { order: "-3" });
    style("trace", { order: "-2" });
    style("model", { order: "-1" });
    nameNothing();
    for (const head of document.querySelectorAll(".MuiAccordionSummary-root")) {
      const untouched = /custom parameters/i.test(head.textContent) && !head.dataset.kvbench;
      if (untouched) {
        head.dataset.kvbench = "opened";
        if (head.getAttribute("aria-expanded") === "false") head.click();
      }
    }
  }

  new MutationObserver(place).observe(document.documentElement, { childList: true, subtree: true });
  setInterval(place, 500);
  place();
})();
