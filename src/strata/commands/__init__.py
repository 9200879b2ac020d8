"""What each command does; `cli.py` calls `run(options)` of the module with the command's name."""
