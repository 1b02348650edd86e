//! `towpath attach`: serves an existing network namespace.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use towpath_gateway::flows::allow_ports;
use towpath_io::confine::Mode;
use towpath_io::confine::broker::{Duties, Ports};
use towpath_io::namespace::channel::Channel;
use towpath_io::namespace::enter::{Identity, NetworkNamespace, RemovalWatch, UserNamespace};
use towpath_io::namespace::signals::Signals;
use towpath_io::namespace::{self, ChildGuard};
use towpath_io::process_sys::{Forked, Inherited};
use towpath_io::reactor::{Interest, Reactor};

use crate::config::args::{AttachArguments, NoConfig};
use crate::config::{egress, settings};
use crate::control::port_socket::PortSocket;
use crate::control::socket::Control;
use crate::end_child;
use crate::exit::{Ending, Failure};
use crate::process::child::Child;
use crate::process::confine::{self, Confinement};
use crate::process::daemon::{Role, Surroundings};
use crate::process::follow::Follower;
use crate::process::parent::{
    give_up, host_tables, receive_inside, start, take_descriptor, take_ready, wait,
};
use crate::process::serve::{self, Gateway};

/// What shows that a namespace needs no service any more.
#[derive(Default)]
struct Life {
    /// A process that ends, as far as the namespace is that process's.
    process: Option<OwnedFd>,
    /// A path that is removed.
    path: Option<(RemovalWatch, PathBuf)>,
    /// A descriptor whose other end is closed.
    exit: Option<OwnedFd>,
}

/// Serves until the namespace goes or a signal requests the end.
pub(crate) fn attach(arguments: &AttachArguments) -> Result<Ending, Failure> {
    let network = &arguments.network;
    let messages = settings::messages(&network.gateway);
    let mut inherited = Inherited::take().context("cannot list the inherited file descriptors")?;
    let ready = take_ready(&mut inherited, network.gateway.ready_fd)?;
    let exit = arguments.exit_fd.map(|number| take_exit(&mut inherited, number)).transpose()?;
    let mut config = settings::config(network)?;
    config.configures_interface = arguments.no_config.is_none();
    config.configures_ipv6 = arguments.no_config != Some(NoConfig::All);
    let Found { namespace, user, mut life } = find(arguments, &mut inherited)?;
    life.exit = exit;
    namespace.check_foreign()?;
    // A path may have named one of them.
    drop(inherited);
    let surroundings = match Surroundings::prepare(&arguments.process)? {
        Role::Serving(surroundings) => surroundings,
        Role::Over(ending) => return Ok(ending),
    };
    let signals = Signals::block()?;
    let host = host_tables(&config)?;
    let (ours, theirs) = Channel::pair()?;
    let child = match namespace::fork()? {
        Forked::Child => {
            drop((ours, ready, surroundings, life));
            let native = false;
            let child = Child { config: &config, messages, channel: theirs, host, native };
            end_child(child.attach(&namespace, user.as_ref()));
        }
        Forked::Parent(child) => ChildGuard::new(child),
    };
    // The namespace's file may be unmounted from now on; the TAP device keeps the namespace alive.
    let identity = namespace.identity()?;
    drop((theirs, namespace, user, host));
    // While it is permitted; the program has its own limit already.
    allow_ports(&config.publish);
    let program = config.ipv4.map(|v4| v4.address);
    let ports = arguments.port_socket.as_deref();
    let ports = ports.map(|path| PortSocket::new(path, program)).transpose()?;
    let control = serve::control(network.control_socket.as_deref(), messages)?;
    let duties = Duties {
        ports: match ports {
            Some(_) => Ports::Any,
            None => confine::ports(&config.publish),
        },
        sockets: ports.as_ref().and_then(PortSocket::file).into_iter().collect(),
        control: control.as_ref().map(Control::files).unwrap_or_default(),
        log: egress::audit_files(&network.gateway.egress)?,
        namespace: life.path.as_ref().map(|(_, path)| path.clone()),
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
    let host = Follower::open(&config, &network.link, messages);
    confinement.isolate()?;
    let mut gateway = start(&config, inside, control, ready, messages)?;
    gateway.follow_address(host);
    confinement.release_input_and_output()?;
    surroundings.announce()?;
    gateway.begin();
    confinement.seal(Mode::Program);
    gateway.serve_ports(ports);
    serve_until_over(&mut gateway, &signals, &identity, &life)?;
    gateway.finish_capture(&[signals.as_fd()])?;
    if network.gateway.stats {
        messages.error(gateway.report());
    }
    Ok(Ending::Code(0))
}

/// What the options name.
struct Found {
    namespace: NetworkNamespace,
    user: Option<UserNamespace>,
    life: Life,
}

fn find(arguments: &AttachArguments, inherited: &mut Inherited) -> anyhow::Result<Found> {
    let AttachArguments { pid, netns, netns_fd, userns, userns_fd, stay, .. } = arguments;
    let nothing = Life::default();
    let (namespace, life) = match (*pid, netns, *netns_fd) {
        (Some(pid), ..) => {
            let (namespace, process) = NetworkNamespace::of_process(pid)?;
            (namespace, Life { process: Some(process), ..Life::default() })
        }
        (_, Some(path), _) => {
            let life = if *stay { nothing } else { Life::of_path(path)? };
            let namespace = NetworkNamespace::open(path).context("option --netns")?;
            (namespace, life)
        }
        (.., Some(number)) => {
            const OPTION: &str = "--netns-fd";
            let file = take_descriptor(inherited, OPTION, number)?;
            let namespace = NetworkNamespace::from_fd(file, number);
            (namespace.with_context(|| format!("option {OPTION}"))?, nothing)
        }
        (None, None, None) => unreachable!("the command line requires one of them"),
    };
    let user = match (userns, *userns_fd) {
        (Some(path), _) => Some(UserNamespace::open(path).context("option --userns")?),
        (None, Some(number)) => {
            const OPTION: &str = "--userns-fd";
            let file = take_descriptor(inherited, OPTION, number)?;
            let user = UserNamespace::from_fd(file, number);
            Some(user.with_context(|| format!("option {OPTION}"))?)
        }
        (None, None) => None,
    };
    Ok(Found { namespace, user, life })
}

/// Takes over the descriptor of `--exit-fd`.
fn take_exit(inherited: &mut Inherited, number: i32) -> anyhow::Result<OwnedFd> {
    let taken = inherited.take_one(number);
    let taken = taken
        .with_context(|| format!("option --exit-fd: file descriptor {number} must be open"))?;
    let watched = Reactor::new()?.add(&taken, 0, Interest::READ, false);
    watched.with_context(|| {
        format!("option --exit-fd: file descriptor {number} must be a pipe or socket")
    })?;
    Ok(taken)
}

fn serve_until_over(
    gateway: &mut Gateway,
    signals: &Signals,
    identity: &Identity,
    life: &Life,
) -> anyhow::Result<()> {
    let mut watched = vec![signals.as_fd()];
    watched.extend(life.process.as_ref().map(AsFd::as_fd));
    watched.extend(life.exit.as_ref().map(AsFd::as_fd));
    watched.extend(life.path.as_ref().map(|(watch, _)| watch.as_fd()));
    loop {
        let ready = gateway.run_until(&watched)?;
        match &life.path {
            // The watch of the path is the last one.
            Some((watch, path)) if ready > 0 && ready + 1 == watched.len() => {
                watch.clear();
                if !identity.is_at(path) {
                    return Ok(());
                }
            }
            _ if ready > 0 => return Ok(()),
            _ => {}
        }
        while let Some(arrived) = signals.next()? {
            if arrived.is_end() {
                return Ok(());
            }
        }
    }
}

impl Life {
    /// Watches a path, and the process that it belongs to if it is one of /proc, which reports no
    /// removal. Nothing shows the end of a path that leads through this process's own descriptors
    /// or files.
    fn of_path(path: &Path) -> anyhow::Result<Self> {
        if ["/proc/self", "/proc/thread-self"].iter().any(|own| path.starts_with(own)) {
            return Ok(Self::default());
        }
        let process = process_of(path).map(NetworkNamespace::of_process);
        let process = process.transpose()?.map(|(_, process)| process);
        let watch = RemovalWatch::new(path)
            .with_context(|| format!("cannot watch the network namespace {}", path.display()))?;
        Ok(Self { process, path: Some((watch, path.to_owned())), exit: None })
    }
}

/// Returns the number of the process in whose folder of /proc the path is.
fn process_of(path: &Path) -> Option<i32> {
    let mut parts = path.components();
    let is_proc = parts.next() == Some(Component::RootDir)
        && parts.next() == Some(Component::Normal("proc".as_ref()));
    let Some(Component::Normal(name)) = parts.next().filter(|_| is_proc) else { return None };
    name.to_str()?.parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_paths() {
        let of = |path: &str| process_of(Path::new(path));
        assert_eq!(of("/proc/123/ns/net"), Some(123));
        assert_eq!(of("/proc/123/root/tmp/netns"), Some(123));
        for path in ["/proc/self/fd/0", "/proc", "/run/netns/123", "proc/123/ns/net", "/proc/-1/x"]
        {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
