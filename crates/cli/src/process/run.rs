//! `towpath run`: runs a program in namespaces of its own.
//!
//! There are three processes: this one serves; its child is process 1 of the program's namespaces;
//! the child's child is the program. All three are in one process group, so a shell sees one job.
//! The channel between the first two shows each of them the other's end.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::Context;
use towpath_gateway::config::Config;
use towpath_gateway::flows::allow_ports;
use towpath_gateway::native::{self, Link};
use towpath_io::confine::Mode;
use towpath_io::confine::broker::Duties;
use towpath_io::namespace::channel::{Channel, ChannelError, Message};
use towpath_io::namespace::signals::{self, Signals};
use towpath_io::namespace::terminal::Foreground;
use towpath_io::namespace::{ChildGuard, Isolation};
use towpath_io::process_sys::{Forked, Inherited};

use crate::config::args::RunArguments;
use crate::config::{egress, settings};
use crate::control::socket::Control;
use crate::end_child;
use crate::exit::{Ending, Failure};
use crate::process::child::Child;
use crate::process::confine::{self, Confinement};
use crate::process::follow::Follower;
use crate::process::parent::{give_up, host_tables, receive_inside, start, take_ready, wait};
use crate::process::serve::{self, Gateway};

/// Runs the program and returns how it ended.
pub(crate) fn run(arguments: &RunArguments) -> Result<Ending, Failure> {
    let network = &arguments.network;
    let messages = settings::messages(&network.gateway);
    // CMD inherits the remaining descriptors, as with any wrapper; this process and process 1 do
    // not.
    let mut inherited = Inherited::take().context("cannot list the inherited file descriptors")?;
    let ready = take_ready(&mut inherited, network.gateway.ready_fd)?;
    let config = settings::config(network)?;
    let foreground = Foreground::note();
    let signals = Signals::block()?;
    let isolation = Isolation::detect(arguments.map_root)?;
    let isolation = if arguments.native.native { isolation.in_user_namespace() } else { isolation };
    let host = host_tables(&config)?;
    let (ours, theirs) = Channel::pair()?;
    let init = match isolation.fork()? {
        Forked::Child => {
            drop((ours, ready, foreground));
            let native = arguments.native.native;
            let child = Child { config: &config, messages, channel: theirs, host, native };
            end_child(child.run(&isolation, signals, &arguments.command, inherited));
        }
        Forked::Parent(child) => ChildGuard::new(child),
    };
    drop((theirs, inherited, host));
    // While it is permitted; the program has its own limit already.
    allow_ports(&config.publish);
    let control = serve::control(network.control_socket.as_deref(), messages)?;
    let duties = Duties {
        ports: confine::ports(&config.publish),
        control: control.as_ref().map(Control::files).unwrap_or_default(),
        log: egress::audit_files(&network.gateway.egress)?,
        ..Duties::default()
    };
    let child = Some(init.as_fd());
    let confinement = Confinement::begin(&network.gateway, messages, duties, child)?;
    let Some(mut inside) = receive_inside(&ours)? else { return Err(give_up(init)) };
    let native = inside.native.take().map(|files| begin_native(&config, &files)).transpose()?;
    let control = serve::announce(control, messages);
    let host = Follower::open(&config, &network.link, messages);
    confinement.isolate()?;
    let mut gateway = start(&config, inside, control, ready, messages)?;
    gateway.follow_address(host);
    gateway.serve_native(native);
    ours.send(&Message::Go)?;
    // While the program starts.
    gateway.begin();
    let program = match ours.receive() {
        Ok(Message::Started(program)) => program,
        Err(ChannelError::Closed) => {
            // The program may run already: it ends with process 1.
            return match wait(init)?.into() {
                Ending::Code(code) => Err(Failure::reported(code)),
                killed => Ok(killed),
            };
        }
        _ => return Err(ChannelError::Unexpected.into()),
    };
    signals::notify_program(program.as_fd())?;
    confinement.release_input_and_output()?;
    confinement.seal(Mode::Program);
    let received = serve(&mut gateway, &signals, &ours, &program)?;
    // The last process of the namespaces ends now; their sockets close.
    let ended = wait(init)?;
    foreground.restore();
    gateway.finish(&[signals.as_fd()])?;
    if network.gateway.stats {
        messages.error(gateway.report());
    }
    Ok(received.unwrap_or_else(|| ended.into()))
}

/// Starts the process that answers the program's calls about sockets.
fn begin_native(config: &Config, files: &[OwnedFd; 3]) -> anyhow::Result<Link> {
    let begun = native::begin(config, files.each_ref().map(AsFd::as_fd));
    begun.context("option --native: this system offers no native sockets; leave the option out")
}

/// Serves until the program ends; returns `None` if process 1 ended without reporting the program's
/// status.
fn serve(
    gateway: &mut Gateway,
    signals: &Signals,
    channel: &Channel,
    program: &OwnedFd,
) -> Result<Option<Ending>, Failure> {
    loop {
        let ready = gateway.run_until(&[signals.as_fd(), channel.as_fd()])?;
        if ready == 0 {
            while let Some(arrived) = signals.next()? {
                if arrived.is_known_to_program() {
                    continue;
                }
                let passed_on = arrived.pass_on(program.as_fd());
                if arrived.is_end() {
                    // The program ends with this process.
                    passed_on.context("cannot pass the signal on to CMD")?;
                }
            }
            continue;
        }
        return match channel.receive() {
            Ok(Message::Ended(status)) => Ok(Some(Ending::from_raw(status))),
            Err(ChannelError::Closed) => Ok(None),
            _ => Err(ChannelError::Unexpected.into()),
        };
    }
}
