//! The manual pages, made from the same definitions as `--help`: towpath(1), which is an overview,
//! and a page for each subcommand.

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::exit;

/// The section of the manual.
const SECTION: &str = "1";

/// Returns the names of the files, and the pages in roff.
pub(crate) fn pages(command: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = vec![(file_name(crate::NAME), overview(&command)?)];
    for action in visible(&command) {
        pages.push((file_name(&title(action)), page(&command, action)?));
    }
    Ok(pages)
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|action| !action.is_hide_set())
}

fn file_name(title: &str) -> String {
    format!("{title}.{SECTION}")
}

/// The name of the page of a subcommand.
fn title(action: &Command) -> String {
    format!("{}-{}", crate::NAME, action.get_name())
}

/// Returns towpath(1).
fn overview(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Page::new(crate::NAME, command);
    page.roff.control("SH", ["SYNOPSIS"]);
    let words = [bold(crate::NAME), roman(" "), italic("COMMAND"), roman(" [ARGUMENT]...")];
    page.roff.text(words);
    page.roff.control("SH", ["DESCRIPTION"]);
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    page.roff.text([roman(format!("{about}."))]);
    page.roff.text([roman("Each command has a page of its own.")]);
    page.roff.control("SH", ["COMMANDS"]);
    for action in visible(command) {
        page.roff.control("TP", []);
        page.roff.text([bold(title(action)), roman(format!("({SECTION})"))]);
        let about = action.get_about().map(ToString::to_string).unwrap_or_default();
        page.roff.text([roman(format!("{about}."))]);
    }
    page.render(|man, text| man.render_options_section(text), command)?;
    page.exit_status(None);
    page.see_also(visible(command).map(title));
    page.finish()
}

/// Returns the page of a subcommand.
fn page(command: &Command, action: &Command) -> io::Result<Vec<u8>> {
    let mut page = Page::new(&title(action), action);
    page.roff.control("SH", ["SYNOPSIS"]);
    let usage = action.clone().render_usage().to_string();
    for (index, line) in usage.trim_start_matches("Usage:").lines().map(str::trim).enumerate() {
        if index > 0 {
            page.roff.control("br", []);
        }
        let arguments = line.strip_prefix(crate::NAME).unwrap_or(line);
        page.roff.text([bold(crate::NAME), roman(arguments)]);
    }
    page.render(|man, text| man.render_description_section(text), action)?;
    page.render(|man, text| man.render_options_section(text), action)?;
    page.exit_status(Some(action.get_name()));
    let others = visible(command).map(title).filter(|other| *other != title(action));
    page.see_also([crate::NAME.to_owned()].into_iter().chain(others));
    page.finish()
}

/// A page that is being written.
struct Page {
    /// What is finished.
    text: Vec<u8>,
    /// What is added to it next.
    roff: Roff,
}

impl Page {
    /// Begins a page with its title and the section of its name.
    fn new(title: &str, command: &Command) -> Self {
        let source = format!("{} {}", crate::NAME, env!("CARGO_PKG_VERSION"));
        let mut roff = Roff::new();
        // Without a date, which is the third argument.
        roff.control("TH", [&title.to_uppercase(), SECTION, "\"\"", &source, "User Commands"]);
        // Long words, such as addresses, leave no room to adjust a line.
        roff.control("ad", ["l"]);
        roff.control("nh", []);
        roff.control("SH", ["NAME"]);
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        roff.text([roman(format!("{title} - {about}"))]);
        Self { text: Vec::new(), roff }
    }

    /// Adds a section that clap_mangen makes. Its further headings become those of subsections.
    fn render(
        &mut self,
        section: impl FnOnce(&Man, &mut dyn io::Write) -> io::Result<()>,
        command: &Command,
    ) -> io::Result<()> {
        self.flush()?;
        let mut made = Vec::new();
        section(&Man::new(command.clone()), &mut made)?;
        let made = String::from_utf8_lossy(&made);
        let lines: Vec<&str> = made.lines().skip(PREAMBLE).collect();
        for (index, line) in lines.iter().enumerate() {
            let is_empty = |at: Option<usize>| at.and_then(|at| lines.get(at)) == Some(&"");
            let line = match line.strip_prefix(".SH ") {
                Some(heading) if index > 0 => format!(".SS {}", capitalised(heading)),
                // An empty line would be space, too, but is discouraged.
                _ if line.is_empty() => ".sp".to_owned(),
                // The space breaks the line.
                _ if *line == ".br" && is_empty(Some(index + 1)) => continue,
                _ if *line == ".br" && is_empty(index.checked_sub(1)) => continue,
                _ => (*line).to_owned(),
            };
            self.text.extend_from_slice(line.as_bytes());
            self.text.push(b'\n');
        }
        Ok(())
    }

    /// Adds the exit codes of a command, or all.
    fn exit_status(&mut self, command: Option<&str>) {
        self.roff.control("SH", ["EXIT STATUS"]);
        self.roff.control("nf", []);
        for line in exit::lines(command) {
            self.roff.text([roman(line)]);
        }
        self.roff.control("fi", []);
    }

    fn see_also(&mut self, pages: impl Iterator<Item = String>) {
        self.roff.control("SH", ["SEE ALSO"]);
        let mut words = Vec::new();
        for page in pages {
            if !words.is_empty() {
                words.push(roman(", "));
            }
            words.extend([bold(page), roman(format!("({SECTION})"))]);
        }
        self.roff.text(words);
    }

    fn flush(&mut self) -> io::Result<()> {
        let roff = std::mem::take(&mut self.roff);
        let mut text = Vec::new();
        roff.to_writer(&mut text)?;
        // Each part begins with the same definitions, which a page needs once.
        let skipped = if self.text.is_empty() { 0 } else { PREAMBLE };
        for line in text.split_inclusive(|byte| *byte == b'\n').skip(skipped) {
            self.text.extend_from_slice(line);
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<Vec<u8>> {
        self.flush()?;
        Ok(self.text)
    }
}

/// Lines with which each part begins: they define how apostrophes are shown.
const PREAMBLE: usize = 2;

/// Returns a heading in capital letters with only the first one left.
fn capitalised(heading: &str) -> String {
    let mut letters = heading.chars();
    match letters.next() {
        Some(first) => format!("{first}{}", letters.as_str().to_lowercase()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::CommandFactory;

    use super::*;
    use crate::config::args::Arguments;

    fn made() -> BTreeMap<String, String> {
        let pages = pages(Arguments::command()).unwrap().into_iter();
        pages.map(|(name, page)| (name, String::from_utf8(page).unwrap())).collect()
    }

    /// Goal: each visible option of each command is in the command's page.
    #[test]
    fn the_pages_have_every_option() {
        let pages = made();
        let mut command = Arguments::command();
        command.build();
        for action in visible(&command).filter(|action| action.get_name() != "help") {
            let page = pages[&file_name(&title(action))].replace('\\', "");
            for option in action.get_arguments().filter_map(|argument| argument.get_long()) {
                assert!(page.contains(&format!("--{option}")), "{}: {option}", action.get_name());
            }
            assert!(page.contains(".SH \"EXIT STATUS\""));
        }
        assert_eq!(pages.keys().filter(|name| name.contains("man")).count(), 0, "hidden");
    }

    #[test]
    fn the_overview_refers_to_every_page() {
        let pages = made();
        let overview = pages["towpath.1"].replace('\\', "");
        for name in pages.keys().filter_map(|name| name.strip_suffix(".1")) {
            assert!(overview.contains(name), "{name} is missing");
        }
    }

    /// Goal: the help text of each command has the exit codes of that command, as its page does.
    #[test]
    fn help_has_its_own_exit_codes_only() {
        let command = Arguments::command();
        for action in visible(&command) {
            let help = action.get_after_help().map(ToString::to_string);
            assert_eq!(help, Some(exit::help(action.get_name())));
        }
        assert!(!exit::help("policy").contains("doctor"));
    }

    #[test]
    fn a_page_has_its_own_exit_codes_only() {
        let pages = made();
        let has = |name: &str, text: &str| pages[name].contains(text);
        assert!(has("towpath-doctor.1", "does not work here"));
        assert!(!has("towpath-doctor.1", "CMD was not found"));
        assert!(has("towpath-run.1", "CMD was not found"));
        assert!(!has("towpath-run.1", "does not work here"));
        assert!(has("towpath-stats.1", "towpath itself failed"));
        assert!(has("towpath.1", "does not work here") && has("towpath.1", "CMD was not found"));
    }
}
