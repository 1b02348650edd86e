# Set-up, demonstration and tests of towpath: two commands, `make demo` and `make test`.

PREFIX ?= /usr/local
DESTDIR ?=
MIB ?= 1024
# Where rustup and the system keep programs, for shells that do not look there.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
target = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help
help:
	@echo 'make demo     build, then move 1 GiB each way through towpath and check it (MIB=$(MIB))'
	@echo 'make test     install what the tests need, then run all checks and tests'
	@echo 'make build    the command: $(target)/release/towpath'
	@echo 'make install  command and manual page to PREFIX=$(PREFIX)'
	@echo 'make clean    remove everything that was built'

.PHONY: demo
demo: setup-build
	@cargo build --release --locked --package towpath --bin towpath --example demo
	@cargo run --release --locked --quiet --package towpath --example demo $(MIB)

.PHONY: test
test:
	@bash scripts/setup test
	@bash scripts/guest || echo 'make: tests with virtual machines are skipped' >&2
	@cargo xtask ci

.PHONY: build
build: setup-build
	@cargo build --release --locked --package towpath

.PHONY: setup-build
setup-build:
	@bash scripts/setup build

# Installs what `make build` made, so that nothing is built as root.
.PHONY: install
install:
	@test -x $(target)/release/towpath || { echo 'make: run "make build" first' >&2; exit 1; }
	install -D -m 755 $(target)/release/towpath $(DESTDIR)$(PREFIX)/bin/towpath
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(target)/release/towpath man >$(DESTDIR)$(PREFIX)/share/man/man1/towpath.1

.PHONY: clean
clean:
	cargo clean
	rm -rf fuzz/target fuzz/artifacts
