"""Which bytes zero a block: `planner` derives segments from views and proves them; `overlap` proves blocks apart."""
