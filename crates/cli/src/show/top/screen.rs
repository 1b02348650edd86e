//! The terminal: taken over, and given back as it was, also after a panic.

use std::io::{self, IsTerminal, Stdout};
use std::panic;
use std::sync::Once;

use anyhow::bail;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use crate::show::top::app::App;
use crate::show::top::view;

/// The terminal while this program has it. Dropping it gives the terminal back.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// Standard input or output is no terminal, or the terminal refuses.
    pub(super) fn enter() -> anyhow::Result<Self> {
        if !io::stdout().is_terminal() {
            bail!("standard output is no terminal; `towpath top --once` writes one interval to it");
        }
        if !io::stdin().is_terminal() {
            bail!("standard input is no terminal, so there are no keys; `--once` needs none");
        }
        restore_after_panics();
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        // From here on, dropping it restores what was done.
        let mut screen = Self { terminal };
        screen.take()?;
        Ok(screen)
    }

    /// Takes the terminal over, again after [`Screen::release`].
    pub(super) fn take(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        // `Terminal::clear` would ask the terminal for its cursor, and the answer would come as
        // keys, which another thread reads. A new one draws everything.
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }

    /// Gives the terminal back.
    pub(super) fn release(&mut self) {
        restore();
    }

    /// Draws the state.
    pub(super) fn draw(&mut self, app: &mut App) -> io::Result<()> {
        self.terminal.draw(|frame| view::draw(frame, app))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back: the screen from before, the cursor, echo and signals. A terminal that
/// is gone needs nothing.
fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Has the terminal given back before a panic is reported, or the report would vanish with the
/// alternate screen.
fn restore_after_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            report(info);
        }));
    });
}
