//! Ranges of memory about which the kernel was asked: whether there is some, or whether it can be
//! read.
//!
//! Programs hand in the same buffers again and again, and the kernel's answer costs a system call,
//! so each thread remembers some, by the page that a range begins with. The question finds wrong
//! addresses, as the kernel would: it cannot keep a program from unmapping memory afterwards,
//! whether it is asked once or each time. What was mapped when it was asked and is not any more is
//! found when it is asked again: an answer is good for [`USES_MAX`] calls.

use crate::errno::{Errno, Outcome};
use std::ops::Range;

/// Bits of the number of a place.
const PLACE_BITS: u32 = 6;
/// Places of each thread and for each question.
const PLACES: usize = 1 << PLACE_BITS;
/// Answers in a place.
const PLACE_ANSWERS: usize = 4;
/// How often an answer is used.
const USES_MAX: u32 = 1024;
/// Spreads pages over the places: 2^64 by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Answers that were yes. In a full place the one that can be used least gives way.
pub(crate) struct Known([[Answer; PLACE_ANSWERS]; PLACES]);

#[derive(Clone, Copy)]
struct Answer {
    /// Addresses.
    start: usize,
    end: usize,
    /// How often it can still be used.
    uses: u32,
}

impl Known {
    pub(crate) const fn new() -> Self {
        Self([[Answer { start: 0, end: 0, uses: 0 }; PLACE_ANSWERS]; PLACES])
    }

    /// Asks about pages, unless the answer is known.
    ///
    /// # Errors
    /// The kernel's answer, if it is no.
    pub(crate) fn check(
        &mut self,
        pages: Range<usize>,
        ask: impl FnOnce(&Range<usize>) -> Outcome<()>,
    ) -> Outcome<()> {
        let page = (pages.start / rustix::param::page_size()) as u64;
        let answers = &mut self.0[place_of(page)];
        let known = answers.iter_mut().find(|answer| answer.start == pages.start);
        if let Some(answer) = known
            && pages.end <= answer.end
            && let Some(left) = answer.uses.checked_sub(1)
        {
            answer.uses = left;
            return Ok(());
        }
        ask(&pages)?;
        // What is known of the same beginning is too little, or used up.
        let rank = |answer: &&mut Answer| (answer.start != pages.start, answer.uses);
        if let Some(answer) = answers.iter_mut().min_by_key(rank) {
            *answer = Answer { start: pages.start, end: pages.end, uses: USES_MAX };
        }
        Ok(())
    }
}

/// The place of what begins with a page. Mixed twice: with most distances between pages, once is
/// not enough to reach all places.
fn place_of(page: u64) -> usize {
    let mixed = page.wrapping_mul(SPREAD);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(SPREAD);
    (mixed >> (u64::BITS - PLACE_BITS)) as usize
}

/// The pages of a range that is not empty. `EFAULT` if it ends beyond all addresses.
pub(crate) fn pages(start: usize, len: usize) -> Outcome<Range<usize>> {
    let page = rustix::param::page_size();
    let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    Ok(start - start % page..end.ok_or(Errno::FAULT)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGES: usize = PLACES * PLACE_ANSWERS;

    /// Pages so many pages from zero on.
    fn some(pages: Range<usize>) -> Range<usize> {
        let page = rustix::param::page_size();
        pages.start * page..pages.end * page
    }

    /// Whether the kernel is asked about pages, of which those below `end` are mapped; the answer.
    fn asks(known: &mut Known, pages: Range<usize>, end: usize) -> (bool, bool) {
        let (pages, end) = (some(pages), some(0..end).end);
        let mut is_asked = false;
        let answer = known.check(pages.clone(), |asked| {
            assert_eq!(*asked, pages);
            is_asked = true;
            if pages.end <= end { Ok(()) } else { Err(Errno::FAULT) }
        });
        (is_asked, answer.is_ok())
    }

    /// Goal: an answer is about the bytes that were asked for and about no other; no is never
    /// remembered.
    #[test]
    fn an_answer_is_about_its_own_range() {
        let mut known = Known::new();
        assert_eq!(asks(&mut known, 1..3, 4), (true, true));
        assert_eq!(asks(&mut known, 1..3, 4), (false, true));
        assert_eq!(asks(&mut known, 1..2, 4), (false, true), "its beginning");
        assert_eq!(asks(&mut known, 1..4, 4), (true, true), "more than was asked");
        for _ in 0..2 {
            assert_eq!(asks(&mut known, 1..5, 4), (true, false));
            assert_eq!(asks(&mut known, 9..10, 4), (true, false));
        }
        assert_eq!(asks(&mut known, 0..1, 4), (true, true), "nothing was asked of it");
    }

    /// Goal: what is not mapped any more is found, though it was used before.
    #[test]
    fn an_answer_does_not_last() {
        let mut known = Known::new();
        assert_eq!(asks(&mut known, 1..2, 2), (true, true));
        for _ in 0..USES_MAX {
            assert_eq!(asks(&mut known, 1..2, 0), (false, true));
        }
        assert_eq!(asks(&mut known, 1..2, 0), (true, false));
        assert_eq!(asks(&mut known, 1..2, 2), (true, true));
        assert_eq!(asks(&mut known, 1..2, 2), (false, true));
    }

    /// Goal: of half as many buffers as there is room for most are remembered, whatever their size.
    #[test]
    fn buffers_of_one_size_are_remembered() {
        for size in [1, 2, 3, 4, 5, 8, 16, 17, 64, 128, 256, 1024] {
            let mut known = Known::new();
            let mut ask_all = || {
                let buffers = (0..RANGES / 2).map(|at| at * size..at * size + 1);
                buffers.filter(|pages| asks(&mut known, pages.clone(), 1 << 30).0).count()
            };
            assert_eq!(ask_all(), RANGES / 2);
            assert!(ask_all() < RANGES / 8, "{size}");
        }
    }

    /// Goal: a range that ends beyond all addresses is refused, not rounded.
    #[test]
    fn pages_are_whole() {
        let page = rustix::param::page_size();
        assert_eq!(pages(page + 1, 1), Ok(page..2 * page));
        assert_eq!(pages(page - 1, 2), Ok(0..2 * page));
        assert_eq!(pages(usize::MAX - 1, 1), Err(Errno::FAULT));
        assert_eq!(pages(usize::MAX, 2), Err(Errno::FAULT));
    }
}
