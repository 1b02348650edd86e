//! The `towpath` command; all of its code is in the library, which `towpath-bench` runs too.

use std::process::ExitCode;

fn main() -> ExitCode {
    towpath_cli::main()
}
