//! Neither direction of a guest's queues allocates memory, in either ring layout.

use towpath_io::vhost_user::driver::{DriverQueue, GuestRam};
use towpath_io::vhost_user::virtq::{ReceiveQueue, Segment, TransmitQueue, feature};
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Context, Ledger, Memory, MemoryConfig, Site};

#[path = "../../packet/tests/support/allocations.rs"]
mod allocations;

const ROUNDS: u64 = 500;

/// Goal: packets of all sizes pass from one guest to another, lent or copied, in one or several
/// buffers, with indirect descriptors or not, inline or not, and nothing is allocated. Large
/// payload is copied once, small payload twice.
#[test]
fn guest_to_guest_does_not_allocate() {
    let layouts = [0, feature::PACKED]
        .into_iter()
        .flat_map(|layout| [0, feature::INDIRECT | feature::EVENT_INDEX].map(|more| layout | more))
        .flat_map(|features| [(features, false), (features, true)]);
    for (features, is_inline) in layouts {
        let features = features | feature::MRG_RXBUF;
        let [from, to] = [(); 2].map(|()| GuestRam::new(0, &[0x40_0000]).expect("memory"));
        let mut sender = DriverQueue::new(&from, 0, 64, features).expect("it fits");
        let mut receiver = DriverQueue::new(&to, 0, 64, features).expect("it fits");
        let mut transmit = TransmitQueue::start(sender.config(), &from.map().unwrap(), None)
            .expect("a proper queue");
        if is_inline {
            transmit.set_inline();
        }
        let mut receive =
            ReceiveQueue::start(receiver.config(), &to.map().unwrap()).expect("a proper queue");
        let config = MemoryConfig { packets: 64, small_frames: 64, large_frames: 16 };
        let (mut memory, ledger) = (Memory::new(config), Ledger::new());
        let buffers = 0x10_0000;
        for token in 0..60 {
            let address = buffers + token * 2048;
            assert!(receiver.add(&[], &[Segment { address, bytes: 2048 }], token));
        }
        receiver.publish();
        let (mut payload, mut small, mut counted) = (0, 0, 0);
        for round in 0..ROUNDS {
            let bytes = [60, 256, 1514, 9000, 65_000][round as usize % 5];
            let head = Segment { address: buffers, bytes: 12 + 14 };
            let rest = Segment { address: buffers + 4096, bytes: bytes - 14 };
            assert!(sender.add(&[head, rest], &[], 0));
            sender.publish();
            let mut burst = Burst::new();
            let before = allocations::count();
            let now = Instant::START;
            let cx = &mut Context { memory: &mut memory, ledger: &ledger, now };
            transmit.take(&mut burst, cx).expect("good");
            assert_eq!(burst.len(), 1, "round {round}, {bytes} bytes");
            receive.deliver(&mut burst, cx).expect("good");
            assert!(burst.is_empty());
            transmit.turn(now, &ledger);
            receive.enable_kicks();
            transmit.enable_kicks();
            counted += allocations::count() - before;
            payload += u64::from(bytes);
            small += if bytes <= 256 { u64::from(bytes) } else { 0 };
            assert!(sender.used().is_some());
            while let Some((token, _)) = receiver.used() {
                let address = buffers + token * 2048;
                assert!(receiver.add(&[], &[Segment { address, bytes: 2048 }], token));
            }
            receiver.publish();
        }
        assert_eq!(counted, 0, "allocations, features {features:#x}");
        assert_eq!(ledger.copied_at(Site::Guest), payload, "once into the other guest");
        assert_eq!(ledger.copied_at(Site::GuestSmall), small);
        assert_eq!(ledger.copied(), payload + small, "and nowhere else");
    }
}
