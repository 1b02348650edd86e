//! Lists the public items of a crate, one per line, from rustdoc's JSON: for `cargo xtask api`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("api-list FILE: FILE is rustdoc's JSON of a crate");
        return ExitCode::from(2);
    };
    let builder = public_api::Builder::from_rustdoc_json(&path)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true);
    match builder.build() {
        Ok(api) => {
            api.items().for_each(|item| println!("{item}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("api-list: {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
