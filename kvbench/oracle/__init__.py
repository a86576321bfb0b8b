"""The plan played in virtual time: ceilings, and what each policy should have got."""
