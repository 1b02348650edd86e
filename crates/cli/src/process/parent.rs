//! The parent's side: the process that stays in the host's namespaces and serves.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use anyhow::{Context, anyhow};
use towpath_gateway::config::Config;
use towpath_gateway::flows::{JoinedDatagrams, JoinedListener};
use towpath_gateway::publish::{JoinedPort, Protocol};
use towpath_io::namespace::ChildGuard;
use towpath_io::namespace::channel::{Channel, ChannelError, Message};
use towpath_io::namespace::mirror::HostTables;
use towpath_io::process_sys::Inherited;

use crate::control::socket::Control;
use crate::exit::{Ending, Failure};
use crate::messages::Messages;
use crate::process::serve::{ChildResources, Gateway, features_from_bits};

/// Waits for a child that has closed its channel; the child has reported the reason to the user.
pub(crate) fn give_up(child: ChildGuard) -> Failure {
    match wait(child).map(Ending::from) {
        Ok(Ending::Code(code)) => Failure::reported(code),
        Ok(Ending::Signal(signal)) => {
            anyhow!("the process that sets up the network was killed by signal {signal}").into()
        }
        Err(error) => error.into(),
    }
}

/// Waits for the end of the child.
pub(crate) fn wait(child: ChildGuard) -> anyhow::Result<ExitStatus> {
    child.wait().context("cannot wait for process 1 of the namespaces")
}

/// Takes over the descriptor of `--ready-fd`.
pub(crate) fn take_ready(
    inherited: &mut Inherited,
    number: Option<i32>,
) -> anyhow::Result<Option<File>> {
    let take = |number| {
        inherited.take_one(number).map(File::from).with_context(|| {
            format!("option --ready-fd: file descriptor {number} must be open for writing")
        })
    };
    number.map(take).transpose()
}

/// Takes over the descriptor of an option, which may also be a standard stream.
pub(crate) fn take_descriptor(
    inherited: &mut Inherited,
    option: &str,
    number: i32,
) -> anyhow::Result<OwnedFd> {
    inherited.take_or_copy(number).with_context(|| {
        format!(
            "option {option}: file descriptor {number} must be open, and no other option may use \
             it"
        )
    })
}

/// Opens the host's tables of sockets, if its ports are mirrored inside.
pub(crate) fn host_tables(config: &Config) -> anyhow::Result<Option<HostTables>> {
    // Ports that are towpath's own; others that it publishes later are found out then.
    let own = |protocol: Protocol, joined: &[JoinedPort]| -> Vec<u16> {
        let published = config.publish.iter().filter(|one| one.protocol == protocol);
        let inside = joined.iter().map(|port| port.inside);
        inside.chain(published.map(|one| one.host_port)).collect()
    };
    let tcp = config.mirrors_host.then(|| own(Protocol::Tcp, &config.joined));
    let udp = config.mirrors_host_udp.then(|| own(Protocol::Udp, &config.joined_udp));
    let option = match (&tcp, &udp) {
        (None, None) => return Ok(None),
        (Some(_), _) => "--host-tcp-ports",
        (None, Some(_)) => "--host-udp-ports",
    };
    let tables = HostTables::open(tcp, udp);
    let tables = tables
        .with_context(|| format!("option {option} auto: cannot read the sockets of the host"));
    tables.map(Some)
}

/// Waits for what the child makes; returns `None` if the child gave up.
pub(crate) fn receive_inside(channel: &Channel) -> anyhow::Result<Option<ChildResources>> {
    let (mut listeners, mut datagrams) = (Vec::new(), Vec::new());
    let (mut opener, mut watcher, mut mirror, mut native) = (None, None, None, None);
    loop {
        match channel.receive() {
            Ok(Message::Listener(host_port, socket)) => {
                listeners.push(JoinedListener { socket: socket.into(), host_port });
            }
            Ok(Message::Datagrams(host_port, socket)) => {
                datagrams.push(JoinedDatagrams { socket: socket.into(), host_port });
            }
            Ok(Message::Opener(channel)) => opener = Some(channel.into()),
            Ok(Message::Watcher(channel)) => watcher = Some(channel.into()),
            Ok(Message::Mirror(channel)) => mirror = Some(channel.into()),
            Ok(Message::Native(files)) => native = Some(files),
            Ok(Message::Ready(features, tap)) => {
                let features = features_from_bits(features);
                return Ok(Some(ChildResources {
                    tap,
                    features,
                    listeners,
                    datagrams,
                    opener,
                    watcher,
                    mirror,
                    native,
                }));
            }
            Err(ChannelError::Closed) => return Ok(None),
            Ok(_) => return Err(ChannelError::Unexpected.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Starts to serve what the child has made, and reports readiness.
pub(crate) fn start(
    config: &Config,
    inside: ChildResources,
    control: Option<Control>,
    ready: Option<File>,
    messages: Messages,
) -> anyhow::Result<Gateway> {
    let gateway = Gateway::start(config, inside, control, messages)?;
    report_ready(ready)?;
    Ok(gateway)
}

/// Reports by `--ready-fd` that the network is served.
pub(crate) fn report_ready(ready: Option<File>) -> anyhow::Result<()> {
    match ready {
        Some(mut ready) => {
            ready.write_all(b"1").context("option --ready-fd: cannot write to the file descriptor")
        }
        None => Ok(()),
    }
}
