# Set-up, demonstration and tests of towpath: two commands, `make demo` and `make test`.

PREFIX ?= /usr/local
DESTDIR ?=
MIB ?= 1024
# Where rustup and the system keep programs, for shells that do not look there.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
target = $(or $(CARGO_TARGET_DIR),target)
# What `make library` builds. Programs look for a library of the version that they were linked to; of a version 0
# each minor one is another.
profile ?= release
version = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
soname = libtowpath_capi.so.$(basename $(version))
lib = $(DESTDIR)$(PREFIX)/lib

.PHONY: help
help:
	@echo 'make demo     build, then move 1 GiB each way through towpath and check it (MIB=$(MIB))'
	@echo 'make test     install what the tests need, then run all checks and tests'
	@echo 'make test-long  tests that take hours: more sizes and seeds, floods, fuzzing'
	@echo 'make build    the command: $(target)/release/towpath'
	@echo 'make install  command and manual page to PREFIX=$(PREFIX)'
	@echo 'make library  the C library: $(target)/release/libtowpath_capi.so and .a'
	@echo 'make install-library  library, header, pkg-config file and manual pages to PREFIX'
	@echo 'make clean    remove everything that was built'

.PHONY: demo
demo: setup-build
	@cargo build --release --locked --package towpath-cli --bin towpath --example demo
	@cargo run --release --locked --quiet --package towpath-cli --example demo $(MIB)

.PHONY: test
test:
	@bash scripts/setup test
	@bash scripts/guest || echo 'make: tests with virtual machines are skipped' >&2
	@cargo xtask ci

.PHONY: test-long
test-long:
	@bash scripts/setup test
	@bash scripts/guest || echo 'make: tests with virtual machines are skipped' >&2
	@cargo xtask long

.PHONY: build
build: setup-build
	@cargo build --release --locked --package towpath-cli

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

.PHONY: library
library: setup-build
	@cargo rustc --profile $(profile:debug=dev) --locked --package towpath-capi --crate-type staticlib
	@cargo rustc --profile $(profile:debug=dev) --locked --package towpath-capi --crate-type cdylib -- \
		-C link-arg=-Wl,-soname,$(soname)

# Installs what `make library` made.
.PHONY: install-library
install-library:
	@test -e $(target)/$(profile)/libtowpath_capi.so || { echo 'make: run "make library" first' >&2; exit 1; }
	install -d $(lib)/pkgconfig $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 755 $(target)/$(profile)/libtowpath_capi.so $(lib)/libtowpath_capi.so.$(version)
	ln -sf libtowpath_capi.so.$(version) $(lib)/$(soname)
	ln -sf $(soname) $(lib)/libtowpath_capi.so
	install -m 644 $(target)/$(profile)/libtowpath_capi.a $(lib)
	install -m 644 crates/capi/include/towpath.h $(DESTDIR)$(PREFIX)/include
	install -m 644 docs/man/*.3 $(DESTDIR)$(PREFIX)/share/man/man3
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(version)|' crates/capi/towpath.pc.in >$(lib)/pkgconfig/towpath.pc

.PHONY: clean
clean:
	cargo clean
	rm -rf fuzz/target fuzz/artifacts
