//! Bytes in several slices, taken one after the other.

use std::io::IoSlice;
use towpath_packet::foreign::copy_own;

/// The rest of several slices.
pub(in crate::host) struct Gather<'a> {
    /// The current slice and those after it.
    slices: &'a [IoSlice<'a>],
    /// Bytes of the current slice that were taken.
    taken: usize,
}

impl<'a> Gather<'a> {
    pub(in crate::host) fn new(slices: &'a [IoSlice<'a>]) -> Self {
        Self { slices, taken: 0 }
    }

    /// Returns the number of bytes left, at most `most`.
    pub(in crate::host) fn len_within(&self, most: usize) -> usize {
        let mut len = 0;
        for slice in self.slices {
            len += slice.len();
            if len - self.taken >= most {
                return most;
            }
        }
        len - self.taken
    }

    /// Takes bytes until `to` is full or none are left. Returns their number.
    pub(in crate::host) fn copy_to(&mut self, to: &mut [u8]) -> usize {
        let mut count = 0;
        while count < to.len() {
            let Some((first, others)) = self.slices.split_first() else { break };
            let rest = &first[self.taken..];
            let len = rest.len().min(to.len() - count);
            copy_own(&rest[..len], &mut to[count..]);
            count += len;
            if len == rest.len() {
                (self.slices, self.taken) = (others, 0);
            } else {
                self.taken += len;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each byte is taken once and in order, wherever slices and reads end.
    #[test]
    fn all_bytes_come_in_order() {
        let bytes: Vec<u8> = (0..200).collect();
        let parts = [&bytes[..0], &bytes[..9], &bytes[9..9], &bytes[9..150], &bytes[150..]];
        let slices = parts.map(IoSlice::new);
        for step in [1, 7, 9, 64, 200, 300] {
            let mut gather = Gather::new(&slices);
            let mut got = Vec::new();
            loop {
                assert_eq!(gather.len_within(usize::MAX), 200 - got.len());
                assert_eq!(gather.len_within(5), (200 - got.len()).min(5));
                let mut part = vec![0; step];
                let count = gather.copy_to(&mut part);
                if count == 0 {
                    break;
                }
                got.extend_from_slice(&part[..count]);
            }
            assert_eq!(got, bytes, "{step}");
        }
    }
}
