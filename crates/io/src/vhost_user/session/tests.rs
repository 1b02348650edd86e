//! Sessions with requests in the usual order, and in other orders.

use super::*;
use std::fs::File;

fn offer() -> Offer {
    Offer { features: feature::RING_PACKED, pairs: 2, memory_slots: 32, mtu: 1500, mac: None }
}

fn session() -> Session {
    Session::new(offer())
}

/// A session with all protocol features, and with these virtio features.
fn agreed(features: u64) -> Session {
    let mut session = session();
    done(&mut session, Request::SetProtocolFeatures(protocol::ALWAYS));
    done(&mut session, Request::SetFeatures(features));
    session
}

fn file() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

fn ring(number: u32, request: RingRequest) -> Request {
    Request::Ring(number, request)
}

fn addresses() -> RingAddresses {
    RingAddresses { descriptors: 0x1000, used: 0x2000, available: 0x3000, log: None }
}

/// Applies a request without a reply of its own.
fn done(session: &mut Session, request: Request) -> Effect {
    let outcome = session.apply(request).unwrap();
    assert_eq!(outcome.reply, None);
    outcome.effect
}

fn reply(session: &mut Session, request: Request) -> Reply {
    session.apply(request).unwrap().reply.unwrap()
}

/// Sets a ring up, except for its kick descriptor.
fn set_up(session: &mut Session, number: u32, base: u32) {
    done(session, ring(number, RingRequest::Size(256)));
    done(session, ring(number, RingRequest::Base(base)));
    done(session, ring(number, RingRequest::Addresses(addresses())));
}

/// Sets a ring up, and marks it as running.
fn run(session: &mut Session, number: u32) {
    set_up(session, number, 0);
    done(session, ring(number, RingRequest::Kick(Some(file()))));
    session.started(number as u16);
}

fn set(rings: &[u16]) -> RingSet {
    RingSet::collect(rings.iter().copied())
}

#[test]
fn a_ring_starts_once_all_of_it_is_known() {
    let mut session = session();
    let steps = [
        Request::SetFeatures(feature::VERSION_1),
        ring(1, RingRequest::Size(256)),
        ring(1, RingRequest::Addresses(addresses())),
        ring(1, RingRequest::Kick(None)),
    ];
    for step in steps {
        assert!(session.startable().is_empty());
        done(&mut session, step);
    }
    assert_eq!(session.startable(), set(&[1]));
    let setup = session.setup(1).unwrap();
    assert_eq!((setup.size, setup.addresses, setup.base), (256, addresses(), 0));
    session.started(1);
    assert!(session.startable().is_empty());
}

/// Without `VERSION_1` the rings would have another byte order and another header.
#[test]
fn rings_of_legacy_drivers_do_not_start() {
    let mut session = agreed(feature::PROTOCOL_FEATURES);
    set_up(&mut session, 0, 0);
    done(&mut session, ring(0, RingRequest::Kick(None)));
    assert!(session.startable().is_empty());
    done(&mut session, Request::SetStatus(15));
    assert_eq!(reply(&mut session, Request::GetStatus), Reply::Number(15 - 8));
    done(&mut session, Request::SetFeatures(feature::VERSION_1));
    assert_eq!(session.startable(), set(&[0]));
    assert_eq!(reply(&mut session, Request::GetStatus), Reply::Number(15));
}

/// QEMU enables rings before it negotiates features, and does not repeat it when the guest
/// restarts.
#[test]
fn enabling_early_lasts() {
    let mut session = session();
    done(&mut session, ring(0, RingRequest::Enable(true)));
    done(&mut session, Request::SetFeatures(feature::VERSION_1 | feature::PROTOCOL_FEATURES));
    assert!(session.is_enabled(0) && !session.is_enabled(1));
    run(&mut session, 0);
    session.stopped(0, 7);
    reply(&mut session, ring(0, RingRequest::Stop));
    assert!(session.is_enabled(0));
    done(&mut session, ring(0, RingRequest::Enable(false)));
    assert!(!session.is_enabled(0));
}

#[test]
fn without_protocol_features_rings_are_enabled_from_the_start() {
    let mut session = agreed(feature::VERSION_1);
    assert!(session.is_enabled(0));
    done(&mut session, ring(0, RingRequest::Enable(false)));
    assert!(!session.is_enabled(0));
}

#[test]
fn stopping_reports_the_base_and_closes_the_descriptors() {
    let mut session = agreed(feature::VERSION_1);
    done(&mut session, ring(1, RingRequest::Call(Some(file()))));
    run(&mut session, 1);
    assert!(session.kick(1).is_some() && session.call(1).is_some());
    let stop = ring(1, RingRequest::Stop);
    assert_eq!(session.stops(&stop), set(&[1]));
    session.stopped(1, 42);
    assert_eq!(reply(&mut session, stop), Reply::RingState(1, 42));
    assert!(session.kick(1).is_none() && session.call(1).is_none());
    assert!(session.startable().is_empty(), "until the next kick descriptor");
    done(&mut session, ring(1, RingRequest::Kick(Some(file()))));
    assert_eq!(session.setup(1).unwrap().base, 42);
}

/// Memory, dirty log and features change while rings are stopped, which then continue where they
/// were.
#[test]
fn what_the_rings_rest_upon_changes_while_they_stand() {
    let mut session = agreed(feature::VERSION_1);
    run(&mut session, 0);
    run(&mut session, 3);
    let layout = RegionLayout { guest_address: 0, bytes: 1, user_address: 0, file_offset: 0 };
    let inflight = InflightLayout { bytes: 0, file_offset: 0, queues: 0, queue_size: 0 };
    let all = [
        Request::SetMemTable(Vec::new()),
        Request::AddMemReg(layout, file()),
        Request::RemMemReg(layout),
        Request::SetLogBase(file(), 1, 0),
        Request::SetInflightFd(inflight, file()),
        Request::SetFeatures(feature::VERSION_1 | feature::LOG_ALL),
        Request::ResetDevice,
    ];
    for request in all {
        assert_eq!(session.stops(&request), set(&[0, 3]), "{request:?}");
    }
    let none = [
        Request::SetFeatures(feature::VERSION_1),
        Request::GetFeatures,
        ring(3, RingRequest::Call(None)),
        ring(3, RingRequest::Enable(false)),
        ring(1, RingRequest::Addresses(addresses())),
        ring(99, RingRequest::Stop),
    ];
    for request in none {
        assert!(session.stops(&request).is_empty(), "{request:?}");
    }
    assert_eq!(session.stops(&ring(3, RingRequest::Addresses(addresses()))), set(&[3]));
    session.stopped(0, 5);
    session.stopped(3, 6);
    assert_eq!(session.startable(), set(&[0, 3]));
    assert_eq!(session.setup(3).unwrap().base, 6);
}

#[test]
fn a_running_ring_keeps_size_and_base() {
    let mut session = agreed(feature::VERSION_1);
    run(&mut session, 2);
    let refused = session.apply(ring(2, RingRequest::Size(8))).unwrap_err();
    assert_eq!(refused, Refusal::Running(2));
    let refused = session.apply(ring(2, RingRequest::Base(8))).unwrap_err();
    assert_eq!(refused, Refusal::Running(2));
}

/// The base of a packed ring has 32 bits; that of a split ring has 16.
#[test]
fn bases_fit_the_layout_of_the_ring() {
    let mut session = agreed(feature::VERSION_1);
    set_up(&mut session, 0, 0x8001_8002);
    done(&mut session, ring(0, RingRequest::Kick(None)));
    assert_eq!(session.setup(0).unwrap_err(), Refusal::Base(0, 0x8001_8002));
    done(&mut session, Request::SetFeatures(feature::VERSION_1 | feature::RING_PACKED));
    assert_eq!(session.setup(0).unwrap().base, 0x8001_8002);
}

#[test]
fn requests_about_rings_that_do_not_exist_are_refused() {
    let mut session = agreed(feature::VERSION_1);
    for number in [4, 255, u32::MAX] {
        let refused = session.apply(ring(number, RingRequest::Enable(true))).unwrap_err();
        assert_eq!(refused, Refusal::NoRing(number));
    }
    assert_eq!(reply(&mut session, Request::GetQueueNum), Reply::Number(4));
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let mut session = session();
    let refused = session.apply(Request::SetFeatures(1 << 63 | feature::VERSION_1)).unwrap_err();
    assert_eq!(refused, Refusal::Features(1 << 63));
    assert_eq!(session.features(), 0);
    let refused = session.apply(Request::SetProtocolFeatures(1 << 5)).unwrap_err();
    assert_eq!(refused, Refusal::Features(1 << 5), "there is no channel of the back end");
    let Reply::Number(features) = reply(&mut session, Request::GetFeatures) else { panic!() };
    assert_eq!(features & feature::MAC, 0, "the front end chooses the address");
    assert_ne!(features & feature::MULTI_QUEUE, 0);
    let one = Offer { pairs: 1, mac: Some([2; 6]), ..offer() };
    assert_eq!(one.features() & (feature::MULTI_QUEUE | feature::CONTROL_QUEUE), 0);
    assert_ne!(one.features() & feature::MAC, 0);
}

#[test]
fn requests_need_their_feature_of_the_protocol() {
    let layout = RegionLayout { guest_address: 0, bytes: 1, user_address: 0, file_offset: 0 };
    let cases = [
        (Request::SetLogBase(file(), 1, 0), protocol::LOG_SHMFD),
        (Request::SendRarp([0; 6]), protocol::RARP),
        (Request::NetSetMtu(1500), protocol::MTU),
        (Request::GetConfig(ConfigRange { offset: 0, bytes: 1 }), protocol::CONFIG),
        (Request::SetBackendChannel, protocol::BACKEND_REQ),
        (Request::ResetDevice, protocol::RESET_DEVICE),
        (Request::GetStatus, protocol::STATUS),
        (Request::RemMemReg(layout), protocol::CONFIGURE_MEM_SLOTS),
    ];
    for (request, needed) in cases {
        let mut session = session();
        done(&mut session, Request::SetProtocolFeatures(protocol::ALWAYS & !needed));
        assert_eq!(session.apply(request).unwrap_err(), Refusal::NotAgreed(needed));
    }
}

#[test]
fn the_configuration_space_is_read_and_restored() {
    let mut session = Session::new(Offer { mac: Some([2, 0, 0, 0, 0, 7]), ..offer() });
    let features = protocol::ALWAYS | protocol::CONFIG;
    done(&mut session, Request::SetProtocolFeatures(features));
    let mut read =
        |offset, bytes| reply(&mut session, Request::GetConfig(ConfigRange { offset, bytes }));
    let space = vec![2, 0, 0, 0, 0, 7, 1, 0, 2, 0, 0xdc, 5];
    assert_eq!(read(0, 12), Reply::Config(0, space.clone()));
    assert_eq!(read(5, 3), Reply::Config(5, space[5..8].to_vec()));
    assert_eq!(read(10, 4), Reply::Config(10, vec![0xdc, 5, 0, 0]), "zeros past the end");
    assert_eq!(read(200, 2), Reply::Config(200, vec![0, 0]));
    let written = Request::SetConfig(4, vec![8, 9, 0, 0], false);
    assert_eq!(session.apply(written).unwrap_err(), Refusal::ReadOnly);
    done(&mut session, Request::SetConfig(4, vec![8, 9, 0, 0], true));
    let Reply::Config(_, after) =
        reply(&mut session, Request::GetConfig(ConfigRange { offset: 0, bytes: 8 }))
    else {
        panic!()
    };
    assert_eq!(after, [2, 0, 0, 0, 8, 9, 1, 0], "the address only: the link is up");
}

#[test]
fn the_mtu_is_one_that_the_network_carries() {
    let mut session = agreed(feature::VERSION_1);
    for mtu in [0, 67, 1501, u16::MAX] {
        assert_eq!(session.apply(Request::NetSetMtu(mtu)).unwrap_err(), Refusal::Mtu(mtu));
    }
    assert_eq!(session.mtu(), 1500);
    done(&mut session, Request::NetSetMtu(1400));
    assert_eq!(session.mtu(), 1400);
    session.set_mtu_max(1300);
    assert_eq!(session.mtu(), 1300);
    assert_eq!(session.apply(Request::NetSetMtu(1400)).unwrap_err(), Refusal::Mtu(1400));
    session.set_mtu_max(9000);
    assert_eq!(session.mtu(), 1400, "as the front end has set it");
}

/// Goal: the configuration space shows changes of the link at once, also after a reset. The MTU
/// that a guest may have read stays until the guest is reset.
#[test]
fn the_configuration_space_follows_the_link() {
    let offer = Offer { mac: Some([2; 6]), ..offer() };
    let reports = protocol::CONFIG | protocol::BACKEND_REQ;
    assert_eq!(offer.protocol_features(), protocol::ALWAYS | reports);
    let mut session = Session::new(offer);
    done(&mut session, Request::SetProtocolFeatures(protocol::ALWAYS | protocol::CONFIG));
    assert!(!session.takes_reports());
    done(&mut session, Request::SetProtocolFeatures(protocol::ALWAYS | reports));
    assert!(session.takes_reports());
    let read = |session: &mut Session, offset| {
        let range = ConfigRange { offset, bytes: 2 };
        let Reply::Config(_, bytes) = reply(session, Request::GetConfig(range)) else { panic!() };
        u16::from_le_bytes(bytes.try_into().unwrap())
    };
    let (status, mtu) = (6, 10);
    assert_eq!(read(&mut session, status), 1);
    session.set_mtu_max(1400);
    assert_eq!((session.mtu(), read(&mut session, mtu)), (1400, 1400), "no guest has read it");
    done(&mut session, Request::SetFeatures(feature::VERSION_1 | feature::MTU));
    session.set_link(false);
    session.set_mtu_max(9000);
    assert_eq!((read(&mut session, status), read(&mut session, mtu)), (0, 1400));
    assert_eq!(session.mtu(), 1400);
    done(&mut session, Request::ResetDevice);
    assert_eq!((read(&mut session, status), read(&mut session, mtu)), (0, 9000));
    session.set_link(true);
    assert_eq!(read(&mut session, status), 1);
}

#[test]
fn a_reset_forgets_the_rings_and_keeps_the_session() {
    let mut session = agreed(feature::VERSION_1);
    set_up(&mut session, 0, 9);
    done(&mut session, ring(0, RingRequest::Kick(Some(file()))));
    done(&mut session, ring(0, RingRequest::Enable(true)));
    assert!(matches!(done(&mut session, Request::ResetDevice), Effect::Reset));
    assert_eq!(session.features(), 0);
    assert!(session.acknowledges());
    done(&mut session, Request::SetFeatures(feature::VERSION_1 | feature::PROTOCOL_FEATURES));
    assert!(session.startable().is_empty() && !session.is_enabled(0));
}
