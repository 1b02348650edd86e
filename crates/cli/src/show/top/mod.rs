//! `towpath top`: a live view of what instances move.
//!
//! # Theory of operation
//!
//! There are three threads. One asks the watched instance in each interval ([`collect`]), one reads
//! keys, and this one draws and acts on signals. The first two send to this one through a channel
//! and ring a doorbell, so it waits for one descriptor besides those of signals and of the
//! terminal. The terminal is given back in all cases ([`screen`]).
//!
//! Each module uses only the modules before it: `{units, sample, table} → {collect, frame} → {app,
//! once} → view → screen`.

#![allow(clippy::disallowed_methods, reason = "nothing of the data path is here")]

mod app;
mod collect;
mod frame;
mod once;
pub(super) mod sample;
mod screen;
mod table;
mod units;
mod view;

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getpid, kill_process};
use towpath_io::doorbell::EventDoorbell;
use towpath_io::namespace::signals::Signals;
use towpath_packet::ring::Doorbell;

use crate::config::args::TopArguments;
use crate::control::instances;
use crate::exit::{Ending, Failure};
use crate::show::stats;
use app::{App, Step};
use collect::{Command, Found, Target};
use screen::Screen;

/// Shows one instance, or a list of several.
pub(crate) fn top(arguments: &TopArguments) -> Result<Ending, Failure> {
    let interval = Duration::from_secs(arguments.interval.into());
    let path = match (arguments.pid, &arguments.socket) {
        (Some(pid), _) => Some(instances::of_process(pid)?),
        (None, Some(path)) if !instances::answers(path)? => {
            return Err(Failure::from(anyhow::anyhow!("no towpath answers at {}", path.display())));
        }
        (None, path) => path.clone(),
    };
    let target = match path {
        Some(path) => Target::One(path),
        None => any(arguments.once)?,
    };
    if arguments.once {
        let Target::One(path) = target else {
            return Err(Failure::from(anyhow::anyhow!("--once needs one instance")));
        };
        return once::once(&path, interval, arguments.json);
    }
    show(target, interval)
}

/// Returns the only instance, or all of them where one is not needed.
fn any(needs_one: bool) -> anyhow::Result<Target> {
    match instances::running()?.as_slice() {
        [(_, path)] => Ok(Target::One(path.clone())),
        [] => bail!("no towpath is running"),
        _ if needs_one => Ok(Target::One(stats::only()?)),
        _ => Ok(Target::All),
    }
}

/// What the other threads send.
enum Message {
    Key(KeyEvent),
    /// There are no more keys.
    NoKeys(io::Error),
    Found(Target, Found),
}

/// Sends to the thread that draws.
#[derive(Clone)]
struct Outlet {
    messages: Sender<Message>,
    bell: EventDoorbell,
}

impl Outlet {
    /// Returns false if nothing is taken any more.
    fn send(&self, message: Message) -> bool {
        let sent = self.messages.send(message).is_ok();
        self.bell.ring();
        sent
    }
}

/// Shows the target until the user quits.
fn show(target: Target, interval: Duration) -> Result<Ending, Failure> {
    // Threads inherit that signals are blocked.
    let signals = Signals::block()?;
    let mut screen = Screen::enter()?;
    let bell = EventDoorbell::fenced()?;
    let (messages, arrived) = channel();
    let (commands, wanted) = channel();
    let outlet = Outlet { messages, bell: bell.clone() };
    let (first, of_keys) = (target.clone(), outlet.clone());
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    named("collector").spawn(move || {
        collect::collect(first, interval, &wanted, |target, found| {
            outlet.send(Message::Found(target, found))
        });
    })?;
    named("keys").spawn(move || read_keys(&of_keys))?;
    let mut app = App::new(target);
    loop {
        screen.draw(&mut app).context("cannot write to the terminal")?;
        #[cfg(debug_assertions)]
        panic_if_asked();
        if wait(&signals, &bell)? {
            return Ok(Ending::Code(0));
        }
        if !act(&mut app, &mut screen, &arrived, &commands)? {
            return Ok(Ending::Code(0));
        }
    }
}

/// Acts on all messages that have arrived. Returns false if the user quits.
fn act(
    app: &mut App,
    screen: &mut Screen,
    arrived: &Receiver<Message>,
    commands: &Sender<Command>,
) -> Result<bool, Failure> {
    for message in arrived.try_iter() {
        match message {
            Message::Found(target, found) => app.update(&target, found),
            Message::NoKeys(error) => {
                return Err(Failure::from(
                    anyhow::Error::from(error)
                        .context("cannot read the keyboard; use --once without a terminal"),
                ));
            }
            Message::Key(key) => match app.press(key) {
                Step::Stay => {}
                Step::Quit => return Ok(false),
                Step::Suspend => {
                    screen.release();
                    // The shell continues this process later; until then the call does not return.
                    let _ = kill_process(getpid(), Signal::TSTP);
                    screen.take()?;
                }
                // The thread ends only when this channel is closed.
                Step::Tell(command) => drop(commands.send(command)),
            },
        }
    }
    Ok(true)
}

/// Waits for something to do. Returns true if a signal requests the end, or if the terminal is
/// gone.
fn wait(signals: &Signals, bell: &EventDoorbell) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut fds = [
        PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN),
        // It reports a hangup; keys are read by another thread.
        PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::empty()),
    ];
    rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
    let is_gone = !fds[2].revents().is_empty();
    bell.clear();
    // A change of the window's size needs no more than that it is drawn again.
    while let Some(arrived) = signals.next()? {
        if arrived.is_end() {
            return Ok(true);
        }
    }
    Ok(is_gone)
}

/// Reads keys for as long as they are taken.
fn read_keys(outlet: &Outlet) {
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Message::Key(key),
            Ok(_) => continue,
            Err(error) => Message::NoKeys(error),
        };
        let is_last = matches!(message, Message::NoKeys(_));
        if !outlet.send(message) || is_last {
            return;
        }
    }
}

/// Panics, to test that the terminal is given back.
#[cfg(debug_assertions)]
fn panic_if_asked() {
    assert!(std::env::var_os("TOWPATH_TOP_PANIC").is_none(), "TOWPATH_TOP_PANIC is set");
}
