//! The state behind the screen, and what keys do to it.

use std::collections::HashMap;
use std::path::PathBuf;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::show::top::collect::{Command, Found, Target};
use crate::show::top::frame::{self, Frame};
use crate::show::top::sample::Sample;
use crate::show::top::table::{Order, Row, Table};

/// Longest text to filter by, in characters.
const FILTER_CHARS_MAX: usize = 64;

/// What covers the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Cover {
    #[default]
    None,
    /// The details of the selected row.
    Details,
    Help,
}

/// What follows a key.
#[derive(Debug)]
pub(super) enum Step {
    Stay,
    Quit,
    /// Stop, as Ctrl-Z does.
    Suspend,
    Tell(Command),
}

/// The state.
#[derive(Debug)]
pub(super) struct App {
    target: Target,
    /// The last samples: of the watched instance, and of all instances.
    sample: Option<Sample>,
    samples: HashMap<PathBuf, Sample>,
    /// What is shown of the watched instance.
    pub(super) frame: Frame,
    instances: Table,
    /// Index of the shown table in `frame`.
    shown: usize,
    orders: HashMap<&'static str, Order>,
    pub(super) filter: String,
    /// Keys go to the filter.
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    /// The name of the selected row, and its details when it was last there.
    selected: Option<String>,
    details: Vec<(String, String)>,
    pub(super) is_gone: bool,
    pub(super) cover: Cover,
    /// Lines of the cover that are scrolled out.
    pub(super) scrolled: usize,
    /// First row on the screen, and the number of rows that have room; set when it is drawn.
    pub(super) first_row: usize,
    pub(super) room: usize,
    /// An event that the user should know about.
    pub(super) note: Option<String>,
}

impl App {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target,
            sample: None,
            samples: HashMap::new(),
            frame: Frame::default(),
            instances: frame::instance_table(&HashMap::new(), &[]),
            shown: 0,
            orders: HashMap::new(),
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            selected: None,
            details: Vec::new(),
            is_gone: false,
            cover: Cover::None,
            scrolled: 0,
            first_row: 0,
            room: 1,
            note: None,
        }
    }

    /// Returns true while the list of instances is shown.
    pub(super) fn is_list(&self) -> bool {
        self.target == Target::All
    }

    /// Returns the table that is shown, if there is something to show yet.
    pub(super) fn table(&self) -> Option<&Table> {
        match self.target {
            Target::All => Some(&self.instances),
            Target::One(_) => self.frame.tables.get(self.shown),
        }
    }

    /// Returns the order of the shown table.
    pub(super) fn order(&self) -> Order {
        let name = self.table().map_or("", |table| table.name);
        let first = Order { by: frame::first_order(name), is_reversed: false };
        self.orders.get(name).copied().unwrap_or(first)
    }

    /// Returns the rows of the shown table, in order.
    pub(super) fn rows(&self) -> Vec<&Row> {
        self.table().map(|table| table.view(self.order(), &self.filter)).unwrap_or_default()
    }

    /// Returns the index of the selected row among these; the first row if it is not there.
    pub(super) fn selected_index(&self, rows: &[&Row]) -> usize {
        let is_selected = |row: &&Row| self.selected.as_ref() == Some(&row.id);
        rows.iter().position(is_selected).unwrap_or(0)
    }

    /// Returns the details of the selected row.
    pub(super) fn details(&self) -> &[(String, String)] {
        &self.details
    }

    /// Takes over what was found about `target`; what is about another one comes too late.
    pub(super) fn update(&mut self, target: &Target, found: Found) {
        if *target != self.target || self.is_paused {
            return;
        }
        self.note = None;
        match found {
            Found::One(sample) => {
                self.frame = Frame::new(self.sample.as_ref(), &sample);
                self.shown = self.shown.min(self.frame.tables.len() - 1);
                self.sample = Some(*sample);
                self.follow_selected();
            }
            Found::All(samples) => {
                if samples.is_empty() {
                    self.note = Some("no towpath of this user is running".to_owned());
                }
                self.instances = frame::instance_table(&self.samples, &samples);
                self.samples = samples.into_iter().collect();
            }
            Found::Ended => {
                self.note = Some("the instance has ended; these are its last figures".to_owned());
            }
            Found::Failed(why) => self.note = Some(format!("no figures: {why}")),
        }
    }

    /// Renews the details of the selected row, if it is still there.
    fn follow_selected(&mut self) {
        let rows = self.table().map(|table| table.rows.as_slice()).unwrap_or_default();
        let row = rows.iter().find(|row| self.selected.as_ref() == Some(&row.id));
        let details = row.map(|row| row.details.clone());
        self.is_gone = details.is_none();
        if let Some(details) = details {
            self.details = details;
        }
    }

    /// Acts on a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Step {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Step::Quit,
                KeyCode::Char('z') => Step::Suspend,
                _ => Step::Stay,
            };
        }
        if self.is_typing {
            self.type_key(key.code);
            return Step::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Char('i') => return self.watch(Target::All),
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                return Step::Tell(Command::Pause(self.is_paused));
            }
            KeyCode::Char('h' | '?') => self.cover_with(Cover::Help),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('>' | 's') | KeyCode::Right => self.sort_by_next(1),
            KeyCode::Char('<') | KeyCode::Left => self.sort_by_next(-1),
            KeyCode::Char('r') => {
                let Order { by, is_reversed } = self.order();
                self.set_order(Order { by, is_reversed: !is_reversed });
            }
            KeyCode::Tab => self.show_next_table(),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-(self.room as isize)),
            KeyCode::PageDown => self.move_by(self.room as isize),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.move_by(isize::MAX),
            KeyCode::Enter => return self.enter(),
            KeyCode::Esc => self.leave(),
            _ => {}
        }
        Step::Stay
    }

    /// Shows another target. Watching ends a pause.
    fn watch(&mut self, target: Target) -> Step {
        if target == self.target {
            return Step::Stay;
        }
        let fresh = Self::new(target.clone());
        let orders = std::mem::take(&mut self.orders);
        *self = Self { orders, ..fresh };
        Step::Tell(Command::Watch(target))
    }

    fn enter(&mut self) -> Step {
        let rows = self.rows();
        let Some(row) = rows.get(self.selected_index(&rows)) else { return Step::Stay };
        let (id, details) = (row.id.clone(), row.details.clone());
        if self.is_list() {
            return self.watch(Target::One(id.into()));
        }
        (self.selected, self.details, self.is_gone) = (Some(id), details, false);
        self.cover_with(Cover::Details);
        Step::Stay
    }

    /// Leaves the cover, else the filter.
    fn leave(&mut self) {
        match self.cover {
            Cover::None => self.filter.clear(),
            _ => self.cover = Cover::None,
        }
    }

    fn cover_with(&mut self, cover: Cover) {
        self.cover = if self.cover == cover { Cover::None } else { cover };
        self.scrolled = 0;
    }

    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(char) if self.filter.chars().count() < FILTER_CHARS_MAX => {
                self.filter.push(char);
            }
            _ => {}
        }
    }

    fn set_order(&mut self, order: Order) {
        if let Some(name) = self.table().map(|table| table.name) {
            self.orders.insert(name, order);
        }
    }

    fn sort_by_next(&mut self, step: isize) {
        let count = self.table().map_or(0, |table| table.columns.len());
        if count > 0 {
            let by = (self.order().by as isize + step).rem_euclid(count as isize);
            self.set_order(Order { by: by as usize, is_reversed: false });
        }
    }

    fn show_next_table(&mut self) {
        if !self.is_list() && !self.frame.tables.is_empty() {
            self.shown = (self.shown + 1) % self.frame.tables.len();
            (self.selected, self.first_row, self.cover) = (None, 0, Cover::None);
        }
    }

    /// Selects a row so many rows below, or scrolls what covers the table.
    fn move_by(&mut self, step: isize) {
        if self.cover != Cover::None {
            // Drawing limits it to the length of the text.
            self.scrolled = self.scrolled.saturating_add_signed(step);
            return;
        }
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let index = self.selected_index(&rows).saturating_add_signed(step).min(last);
        self.selected = rows.get(index).map(|row| row.id.clone());
    }
}

#[cfg(test)]
pub(super) mod tests;
