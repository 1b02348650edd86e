//! `towpath attach`: serves an existing network namespace.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::Context;
use towpath_io::confine::Mode;
use towpath_io::confine::broker::Duties;
use towpath_io::namespace::channel::Channel;
use towpath_io::namespace::enter::{Identity, NetworkNamespace, RemovalWatch};
use towpath_io::namespace::signals::Signals;
use towpath_io::namespace::{self, Kept};
use towpath_io::process_sys::{Forked, Inherited};

use crate::config::args::AttachArguments;
use crate::config::settings;
use crate::control::socket::Control;
use crate::end_child;
use crate::exit::{Ending, Failure};
use crate::process::child::Child;
use crate::process::confine::{self, Confinement};
use crate::process::parent::{give_up, receive_inside, start, take_ready, wait};
use crate::process::serve::{self, Gateway};

/// What shows that a namespace needs no service any more.
enum Life {
    /// The end of a process.
    Process(OwnedFd),
    /// The removal of a path.
    Path(RemovalWatch, PathBuf),
}

/// Serves until the namespace goes or a signal requests the end.
pub(crate) fn attach(arguments: &AttachArguments) -> Result<Ending, Failure> {
    let network = &arguments.network;
    let messages = settings::messages(&network.gateway);
    let mut inherited = Inherited::take().context("cannot list the inherited file descriptors")?;
    let ready = take_ready(&mut inherited, network.gateway.ready_fd)?;
    drop(inherited);
    let config = settings::config(network)?;
    let (namespace, life) = find(arguments)?;
    namespace.check_foreign()?;
    let signals = Signals::block()?;
    let (ours, theirs) = Channel::pair()?;
    let child = match namespace::fork()? {
        Forked::Child => {
            drop((ours, ready));
            let child = Child { config: &config, messages, channel: theirs };
            end_child(child.attach(&namespace));
        }
        Forked::Parent(child) => Kept::new(child),
    };
    // The namespace's file may be unmounted from now on; the TAP device keeps the namespace alive.
    let identity = namespace.identity()?;
    drop((theirs, namespace));
    let control = serve::control(messages);
    let duties = Duties {
        ports: confine::ports(&config.publish),
        control: control.as_ref().map(Control::files),
        namespace: life.path().map(Path::to_owned),
        ..Duties::default()
    };
    let confinement = Confinement::begin(&network.gateway, messages, duties, Some(child.as_fd()))?;
    let Some(inside) = receive_inside(&ours)? else { return Err(give_up(child)) };
    // The child stays if it has to open sockets inside.
    let _opener = match inside.opener {
        Some(_) => Some(child),
        None => wait(child).map(|_| None)?,
    };
    let control = serve::announce(control, messages);
    confinement.isolate()?;
    let mut gateway = start(&config, inside, control, ready, messages)?;
    confinement.release_input_and_output()?;
    confinement.seal(Mode::Program);
    gateway.begin();
    serve_until_over(&mut gateway, &signals, &identity, &life)?;
    gateway.finish_capture(&[signals.as_fd()])?;
    if network.gateway.stats {
        messages.error(gateway.report());
    }
    Ok(Ending::Code(0))
}

fn find(arguments: &AttachArguments) -> anyhow::Result<(NetworkNamespace, Life)> {
    match (&arguments.pid, &arguments.netns) {
        (Some(pid), _) => {
            let (namespace, process) = NetworkNamespace::of_process(*pid)?;
            Ok((namespace, Life::Process(process)))
        }
        (None, Some(path)) => {
            let watch = RemovalWatch::new(path).with_context(|| {
                format!("cannot watch the network namespace {}", path.display())
            })?;
            Ok((NetworkNamespace::open(path)?, Life::Path(watch, path.clone())))
        }
        (None, None) => unreachable!("the command line requires one of them"),
    }
}

fn serve_until_over(
    gateway: &mut Gateway,
    signals: &Signals,
    identity: &Identity,
    life: &Life,
) -> anyhow::Result<()> {
    loop {
        let ready = gateway.run_until(&[signals.as_fd(), life.as_fd()])?;
        if ready == 1 && life.is_over(|path| identity.is_at(path)) {
            return Ok(());
        }
        while let Some(arrived) = signals.next()? {
            if arrived.is_end() {
                return Ok(());
            }
        }
    }
}

impl Life {
    fn path(&self) -> Option<&Path> {
        match self {
            Life::Process(_) => None,
            Life::Path(_, path) => Some(path),
        }
    }

    fn is_over(&self, is_at: impl Fn(&Path) -> bool) -> bool {
        match self {
            Life::Process(_) => true,
            Life::Path(watch, path) => {
                watch.clear();
                !is_at(path)
            }
        }
    }
}

impl AsFd for Life {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Life::Process(pidfd) => pidfd.as_fd(),
            Life::Path(watch, _) => watch.as_fd(),
        }
    }
}
