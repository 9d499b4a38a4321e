# make demo   an environment, tkern in it, and the main job: devices, parity, a quick benchmark, pictures
# make test   the tests (REQUIRE="cpu vulkan" makes a missing backend a failure; EXTRAS=test,torch adds PyTorch)
# make lint   ruff and mypy
# make docs   docs/reference.md, from the docstrings
# make msl    every kernel as Metal would get it, checked without a Mac
# make parity, bench, report   those commands, on BACKEND="metal cpu"; what they write goes to OUT
# make system the packages that the tests need on Debian and Ubuntu

# The first Python of 3.10 to 3.13; Taichi has no wheels for others.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
EXTRAS ?= test
REQUIRE ?=
OUT ?= plots/demo
ARGS ?=
BACKEND ?=
SHAPES ?= quick
# All ops take six minutes on two cores; the gradients of attention are held against the oracle before they are timed.
DEMO = attention conv2d_backward_weight max_pool2d_backward rms_norm_backward

MAKEFLAGS += --no-builtin-rules
BIN = $(VENV)/bin
comma := ,
empty :=
space := $(empty) $(empty)
# One stamp for each set of extras; installing one keeps what another brought.
CORE = $(VENV)/.installed-core
WITH_EXTRAS = $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
WITH_DEV = $(VENV)/.installed-dev

define install
@test -n "$(PYTHON)" || { echo "tkern needs Python 3.10 to 3.13; none was found. Name one: make PYTHON=..."; exit 1; }
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
@echo "Installing tkern into $(VENV)"
$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.$(1)'
@touch $@
endef

.PHONY: demo test lint docs msl parity bench report system clean

demo: $(CORE)
	$(BIN)/tkern devices
	$(BIN)/tkern parity $(DEMO) --json $(OUT)/parity.json --plot $(OUT)/parity.png
	$(BIN)/tkern bench attention_backward rms_norm_backward --shapes quick --out $(OUT)
	$(BIN)/tkern plot $(OUT)
	@echo; echo "The pictures are in $(CURDIR)/$(OUT): parity.png, times.png, roof.png, size.png"

test: $(WITH_EXTRAS)
	$(BIN)/python -m pytest -n 2 $(if $(REQUIRE),--require=$(subst $(space),$(comma),$(strip $(REQUIRE)))) $(ARGS)

lint: $(WITH_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(CORE)
	$(BIN)/python -m tkern.reference

# Each writes its JSON, CSV and pictures into OUT.
msl: $(CORE)
	$(BIN)/tkern msl --out $(OUT)/msl $(ARGS)

parity: $(CORE)
	$(BIN)/tkern parity $(ARGS) $(if $(BACKEND),--backend $(BACKEND)) --json $(OUT)/parity.json --plot $(OUT)/parity.png

bench: $(CORE)
	$(BIN)/tkern bench $(ARGS) $(if $(BACKEND),--backend $(BACKEND)) --shapes $(SHAPES) --out $(OUT)
	$(BIN)/tkern plot $(OUT)

report: $(CORE)
	$(BIN)/tkern report $(ARGS) $(if $(BACKEND),--backend $(BACKEND)) --out $(OUT)/report.json

system:
	.ci/system

clean:
	rm -rf $(VENV) build *.egg-info

$(CORE): pyproject.toml constraints.txt
	$(call install)

$(WITH_EXTRAS): pyproject.toml constraints.txt
	$(call install,[$(EXTRAS)])

$(WITH_DEV): pyproject.toml constraints.txt
	$(call install,[dev])
