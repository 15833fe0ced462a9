.PHONY: check format test slow browser gpu examples docs ci

check:  ## lint, layout, types, the direction of imports
	ruff check .
	ruff format --check .
	pyright
	lint-imports

format:  ## what the tools can mend themselves
	ruff check --fix .
	ruff format .

test:  ## the fast suite
	pytest -q -n 2

slow:  ## needs the `weights` extra
	pytest -q -m slow

browser:  ## opens the pages of `egrm bench report`; needs the `browser` extra, Chromium and its driver
	pytest -q -m slow tests/test_page_browser.py

gpu:  ## needs an accelerator
	pytest -q -m gpu

examples:  ## copy the model code into the custom_generate folders
	python -c "from transformers_egrm.export import write_all; write_all('examples/custom_generate')"

docs:  ## the documentation site, in site/; needs the `docs` extra
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

ci:  ## everything a change must pass, from an empty environment
	bash .ci/run
