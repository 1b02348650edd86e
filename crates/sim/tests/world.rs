use towpath_sim::flow::*; use towpath_sim::host::*; use towpath_sim::link::*; use towpath_sim::world::*;
use towpath_net::stack::*; use towpath_net::time::*; use towpath_net::wire::MacAddr; use towpath_packet::*;
fn host(n: u8, caps: Caps) -> Host {
    let config = Config { mac: MacAddr([2,0,0,0,0,n]), addresses: vec![Address{address: [10,0,0,n].into(), prefix_len: 24}], next_hops: vec![], transparent: false, secret: [n.into(), 5], tcp: Default::default(), limits: Default::default() };
    Host::new(config, caps, MemoryConfig{packets: 4096, small_frames: 8192, large_frames: 1024})
}
#[test]
fn ten_megabytes() {
    let caps = Caps{mtu: 1500, checksum: true, tso4: true, tso6: true, uso: true, gso_bytes_max: 65536};
    for (caps, medium) in [(caps, Medium::Tap), (Caps::plain(1500), Medium::Wire)] {
    let link = || Link::new(LinkConfig::clean(medium, 1500, Duration::from_millis(5)));
    let mut world = World::new(1, [host(1, caps), host(2, caps)], [link(), link()]);
    world.hosts[1].listen("10.0.0.2:80".parse().unwrap(), Plan{write: 0, ending: Ending::CloseAfterPeer, ..Plan::default()});
    world.hosts[0].connect("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:80".parse().unwrap(), Plan{write: 10_000_000, ..Plan::default()}, Instant::START).unwrap();
    world.run(Instant::from_micros(100_000_000));
    println!("{:?} {:?}", world.links[0].counters(), world.links[1].counters());
    for h in &world.hosts { println!("{:?}", h.stack.counters());
      for f in &h.flows { println!("{} {} {:?} {:?}", f.written, f.read, f.closed, f.handle); } 
      println!("out {} {} {} {} copied {}", h.memory.packets.out_count(), h.memory.small.out_count(), h.memory.large.out_count(), h.loans.out_count(), h.ledger.copied());
    }
    println!("{:?}", world.problems());
    }
}
