//! `towpath up`: serving a network of virtual machines.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::Context;
use towpath::network::{Attachment, Network, NetworkConfig, PortSettings, services_config};
use towpath::services::Services;
use towpath::worker::Worker;
use towpath_io::namespace::signals::Signals;
use towpath_net::switch::Role;
use towpath_packet::Ledger;

use crate::api;
use crate::args::UpArguments;
use crate::control::Control;
use crate::exit::{Ending, Failure};
use crate::messages::Messages;
use crate::parent::{take_ready, tell_ready};
use crate::serve::{self, allow_many_files};
use crate::settings;

/// Serves until a signal asks to end.
pub(crate) fn up(arguments: &UpArguments) -> Result<Ending, Failure> {
    let messages = settings::messages(&arguments.gateway);
    let ready = take_ready(arguments.gateway.ready_fd)?;
    let config = settings::gateway_config(&arguments.gateway);
    let signals = Signals::block()?;
    allow_many_files();
    let ledger = Arc::new(Ledger::new());
    let network = NetworkConfig {
        mtu: config.mtu,
        gateway: !arguments.no_gateway,
        orphan: arguments.orphan,
        seed: RandomState::new().hash_one(0),
    };
    let mut network = Network::new(network, ledger.clone()).context("cannot make a network")?;
    attach(&mut network, arguments)?;
    if !arguments.no_gateway && !arguments.no_dhcp {
        let told = services_config(&config, &arguments.domain, RandomState::new().hash_one(1));
        network.set_services(Services::new(told));
    }
    let mut worker = Worker::serving(&config, network, ledger)?;
    messages.detail(format_args!("serving {} ports", worker.side().port_count()));
    let control = serve::control(messages);
    // Who waits for this may use the control socket next.
    tell_ready(ready)?;
    serve(&mut worker, &signals, control, &messages)?;
    worker.with_side(Network::shut_down);
    if arguments.gateway.stats {
        messages.error(format_args!("{}\n{}", worker.report(), worker.side().report(worker.now())));
    }
    Ok(Ending::Code(0))
}

/// Serves, and answers who asks meanwhile.
fn serve(
    worker: &mut Worker<Network>,
    signals: &Signals,
    mut control: Option<Control>,
    messages: &Messages,
) -> Result<(), Failure> {
    loop {
        let mut fds = vec![signals.as_fd()];
        fds.extend(control.as_ref().map(AsFd::as_fd));
        worker.run_until(&fds)?;
        while let Some(arrived) = signals.next()? {
            if arrived.is_end() {
                return Ok(());
            }
        }
        // It waits for nobody, so that it does not matter whether it was meant.
        if let Some(open) = &mut control
            && let Err(error) = open.serve(|request| api::answer(worker, request))
        {
            messages.notice(format_args!("no control socket any more: {error}"));
            control = None;
        }
    }
}

fn attach(network: &mut Network, arguments: &UpArguments) -> anyhow::Result<()> {
    let settings = PortSettings {
        queue_len: arguments.queue_len,
        role: if arguments.isolate { Role::Isolated } else { Role::Station },
        pairs: arguments.queue_pairs,
        ..PortSettings::default()
    };
    let of_vhost_user =
        arguments.vhost_user.iter().map(|(name, path)| (name, Attachment::VhostUser(path.clone())));
    let of_stream =
        arguments.stream.iter().map(|(name, path)| (name, Attachment::Stream(path.clone())));
    let of_tap = arguments.tap.iter().map(|name| (name, Attachment::Tap(name.clone())));
    for (name, attachment) in of_vhost_user.chain(of_stream).chain(of_tap) {
        network
            .add_port(name, attachment, settings.clone())
            .with_context(|| format!("cannot make port '{name}'"))?;
    }
    Ok(())
}
