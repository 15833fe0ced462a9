"""`python -m transformers_egrm.cli` is `egrm`."""

from transformers_egrm.cli import main


main()
