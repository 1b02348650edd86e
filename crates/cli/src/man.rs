//! The manual page, made from the same definitions as `--help`.

use std::io::{self, Write};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::exit;

/// Returns the page in roff: the command, then each subcommand with its options.
pub(crate) fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    let man = Man::new(command.clone()).section("1").manual("User Commands");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    synopsis(&command).to_writer(&mut page)?;
    for action in command.get_subcommands().filter(|action| !action.is_hide_set()) {
        let name = action.get_name().to_uppercase();
        let part = Man::new(action.clone());
        let mut text = Vec::new();
        part.render_description_section(&mut text)?;
        part.render_options_section(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let titled = text
            .replace(".SH ", ".SS ")
            .replace(".SS DESCRIPTION", &format!(".SH \"TOWPATH {name}\""));
        page.write_all(titled.as_bytes())?;
    }
    exit_status().to_writer(&mut page)?;
    Ok(page)
}

fn synopsis(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for action in command.get_subcommands().filter(|action| !action.is_hide_set()) {
        let usage = action.clone().render_usage().to_string();
        for line in usage.trim_start_matches("Usage:").lines().map(str::trim) {
            let arguments = line.strip_prefix("towpath").unwrap_or(line);
            roff.text([bold("towpath"), roman(arguments)]);
            roff.control("br", []);
        }
    }
    roff
}

fn exit_status() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    roff.control("nf", []);
    for line in exit::HELP.lines().skip(1) {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_page_has_every_option() {
        let page = super::page(crate::config::args::Arguments::command()).unwrap();
        let page = String::from_utf8(page).unwrap().replace('\\', "");
        for option in ["--tcp-ports", "--map-root", "--netns", "--ready-fd", "EXIT STATUS"] {
            assert!(page.contains(option), "{option} is missing");
        }
    }
}
