//! Draws the state. Every size works, down to nothing; what has no room is left out.

use ratatui::Frame;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;

use crate::show::top::app::{App, Cover};

const HELP: &[&str] = &[
    "up, down, j, k    choose a line; also PgUp, PgDn, Home, End",
    "Enter             details of the line; of an instance, its flows",
    "Esc               leave details or help; end the filter",
    "<, >, s           sort by the column to the left or to the right",
    "r                 reverse the order",
    "/                 filter by text; Enter keeps it, Esc ends it",
    "p, space          pause, or go on",
    "Tab               change between ports and flows (towpath up)",
    "i                 list of instances",
    "h, ?              this help",
    "q, Ctrl-C         quit",
    "",
    "in: from the host to the program; of a port, what its machine has sent.",
    "super: part of the packets that are super-packets.",
    "copies/byte: payload copied in user memory, for each byte carried.",
    "RTT, RETR: round trip and retransmitted segments between the program",
    "and towpath. The host's kernel has those of the other side: ss -ti.",
    "Of many flows, the 200 are listed that have moved most in the interval.",
];

/// What stands between two short texts on a line.
const SEPARATOR: &str = " | ";
/// Width of a name in details, and of the column of a name and its value.
const NAME_CHARS: usize = 20;
const DETAIL_CHARS: usize = 40;

/// Draws the state.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    let lines = lines(app, area.width.into(), area.height.into());
    frame.render_widget(Paragraph::new(Text::from(lines)), area);
}

/// Returns the lines of a screen of this size.
fn lines(app: &mut App, width: usize, height: usize) -> Vec<Line<'static>> {
    let most_sums = [(20, 3), (12, 2), (6, 1)];
    let most_drops = [(20, 3), (12, 2), (9, 1)];
    let most = |steps: &[(usize, usize)]| {
        steps.iter().find(|(from, _)| height >= *from).map_or(0, |(_, most)| *most)
    };
    let mut top = vec![title(app, width)];
    let is_one = !app.is_list();
    if is_one {
        let sums = packed(&app.frame.sums, "", width, most(&most_sums));
        top.extend(sums.into_iter().map(Line::from));
    }
    if let Some(note) = &app.note {
        top.push(Line::styled(note.clone(), Style::new().add_modifier(Modifier::BOLD)));
    }
    let mut bottom = Vec::new();
    if is_one && !app.frame.drops.is_empty() {
        let drops = packed(&app.frame.drops, "dropped: ", width, most(&most_drops));
        bottom.extend(drops.into_iter().map(Line::from));
    }
    if height >= 5 {
        bottom.push(footer(app));
    }
    let room = height.saturating_sub(top.len() + bottom.len());
    let mut body = match app.cover {
        Cover::None => table(app, width, room),
        Cover::Details => details(app, width, room),
        Cover::Help => help(app, room),
    };
    body.resize(room, Line::default());
    let mut all = top;
    all.append(&mut body);
    all.append(&mut bottom);
    all.truncate(height);
    all
}

/// Returns texts in lines, as many of them as have room.
fn packed(texts: &[String], prefix: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut is_empty) = (prefix.to_owned(), true);
    for text in texts {
        let len = line.chars().count() + text.chars().count();
        if !is_empty && len + SEPARATOR.len() > width {
            lines.push(std::mem::take(&mut line));
            is_empty = true;
        }
        if !is_empty {
            line.push_str(SEPARATOR);
        }
        line.push_str(text);
        is_empty = false;
    }
    lines.push(line);
    lines.truncate(most);
    lines
}

fn title(app: &App, width: usize) -> Line<'static> {
    let what = if app.is_list() { "instances" } else { &app.frame.title };
    let mut marks = String::new();
    if app.is_paused {
        marks.push_str("[paused] ");
    }
    if app.is_typing || !app.filter.is_empty() {
        let cursor = if app.is_typing { "_" } else { "" };
        marks.push_str(&format!("[filter: {}{cursor}] ", app.filter.escape_debug()));
    }
    let text = format!("towpath top  {marks}{what}");
    Line::styled(format!("{text:<width$}"), Style::new().add_modifier(Modifier::REVERSED))
}

fn footer(app: &App) -> Line<'static> {
    let sorted = app.table().and_then(|table| table.columns.get(app.order().by));
    let sorted = sorted.map_or(String::new(), |column| format!("by {}  ", column.title));
    let keys = "Enter details  / filter  <> sort  r reverse  p pause";
    let text = format!("q quit  h help  {sorted}{keys}");
    Line::styled(text, Style::new().add_modifier(Modifier::DIM))
}

fn table(app: &mut App, width: usize, room: usize) -> Vec<Line<'static>> {
    let visible = room.saturating_sub(1);
    let (lines, first) = {
        let Some(table) = app.table() else { return vec![Line::from("asking ...")] };
        let rows = app.rows();
        let selected = app.selected_index(&rows);
        // The selected row is on the screen, and the screen is full where there are enough rows.
        let first = app.first_row.min(rows.len().saturating_sub(visible)).min(selected);
        let first = first.max((selected + 1).saturating_sub(visible));
        let fitted = table.fit(&rows, width);
        let titles = table.titles(&fitted, app.order());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut lines = vec![Line::styled(titles, bold)];
        for (index, row) in rows.iter().enumerate().skip(first).take(visible) {
            let line = table.line(&fitted, row);
            lines.push(match index == selected {
                true => {
                    let style = Style::new().add_modifier(Modifier::REVERSED);
                    Line::styled(format!("{line:<width$}"), style)
                }
                false => Line::from(line),
            });
        }
        if rows.is_empty() && visible > 0 {
            lines.push(Line::from(match table.rows.is_empty() {
                true => format!("no {}", table.name),
                false => "nothing has this text; Esc ends the filter".to_owned(),
            }));
        }
        (lines, first)
    };
    (app.first_row, app.room) = (first, visible.max(1));
    lines
}

fn details(app: &mut App, width: usize, room: usize) -> Vec<Line<'static>> {
    let columns = (width / DETAIL_CHARS).max(1);
    let gone =
        if app.is_gone { "it is not listed any more; these are its last figures" } else { "" };
    let mut lines = vec![Line::from(gone)];
    let entries = app.details();
    let height = entries.len().div_ceil(columns);
    for at in 0..height {
        let mut line = String::new();
        for column in 0..columns {
            if let Some((name, value)) = entries.get(column * height + at) {
                let pad = DETAIL_CHARS * column;
                // A long value moves what follows it to the right.
                let gap = if line.chars().count() >= pad && column > 0 { " " } else { "" };
                line = format!("{line:<pad$}{gap}{name:<NAME_CHARS$} {value}");
            }
        }
        lines.push(Line::from(line));
    }
    scrolled(app, lines, room)
}

fn help(app: &mut App, room: usize) -> Vec<Line<'static>> {
    scrolled(app, HELP.iter().map(|line| Line::from(*line)).collect(), room)
}

/// Returns the lines that have room, from where the user has scrolled to.
fn scrolled(app: &mut App, lines: Vec<Line<'static>>, room: usize) -> Vec<Line<'static>> {
    app.scrolled = app.scrolled.min(lines.len().saturating_sub(room));
    app.room = room.max(1);
    lines.into_iter().skip(app.scrolled).take(room).collect()
}

#[cfg(test)]
mod tests;
