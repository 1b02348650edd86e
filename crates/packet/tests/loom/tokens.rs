//! The token bucket that threads share: nothing that is taken is lost.

use loom::sync::Arc;
use loom::thread;
use towpath_packet::time::Instant;
use towpath_packet::tokens::Tokens;

/// Goal: whatever two threads take while a third looks, all of it is missing afterwards, also if
/// they find a bucket that was full long ago.
///
/// Fails if `take` is a load and a store.
#[test]
fn what_two_threads_take_is_missing() {
    loom::model(|| {
        let tokens = Arc::new(Tokens::new(1_000_000, 100));
        let at = Instant::from_micros(1000);
        let takers = [30, 50].map(|count| {
            let tokens = tokens.clone();
            thread::spawn(move || tokens.take(count, at))
        });
        let seen = tokens.left(at);
        assert!([100, 70, 50, 20].contains(&seen), "{seen}");
        for taker in takers {
            taker.join().unwrap();
        }
        assert_eq!(tokens.left(at), 20);
        assert_eq!(tokens.ready_at(100), Instant::from_micros(1080));
    });
}

/// Goal: threads that use the same tokens leave a debt, which is earned before there are others.
#[test]
fn what_is_used_twice_is_a_debt() {
    loom::model(|| {
        let tokens = Arc::new(Tokens::new(1_000_000, 100));
        let at = Instant::from_micros(1000);
        let takers = [(); 2].map(|()| {
            let tokens = tokens.clone();
            thread::spawn(move || {
                let left = tokens.left(at);
                tokens.take(left, at);
                left
            })
        });
        let used: u64 = takers.map(|taker| taker.join().unwrap()).iter().sum();
        assert!(used == 100 || used == 200, "{used}");
        assert_eq!(tokens.left(at), 0);
        assert_eq!(tokens.ready_at(1), Instant::from_micros(1000 + used - 100 + 1));
    });
}
