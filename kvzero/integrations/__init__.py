"""One file per engine; none of them imports the engine, and the core imports none of them."""
