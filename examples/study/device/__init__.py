"""What a lent accelerator is asked, one question a module, in one command."""
