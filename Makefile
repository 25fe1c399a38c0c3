# Every task is in xtask; `cargo xtask --help` lists them. `make demo` and `make test` need nothing but Debian 12 and Rust.
# Arguments go in ARGS: make demo ARGS="--seconds 1"

tasks := demo test fmt clippy doc deps-check fuzz fuzz-smoke packages

.PHONY: help ci $(tasks)

help:
	@echo "make demo    build weft and show it: every tunnel beside bridge and kernel VXLAN"
	@echo "make test    run all tests, the ones that need root and real peers included"
	@echo "make ci      all that CI does"
	@echo "Also: $(filter-out demo test,$(tasks)). See CONTRIBUTING.md."

ci:
	@.ci/run

$(tasks):
	@scripts/bootstrap.sh
	@cargo xtask $@ $(ARGS)
