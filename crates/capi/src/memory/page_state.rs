//! Pages whose state was queried from the kernel: whether they are mapped, or whether they can be
//! read.
//!
//! Programs pass the same buffers repeatedly, and each query costs a system call. So each thread
//! remembers answers, page by page: a range that was queried as a whole may be used in parts later,
//! and the other way round. A query detects invalid addresses, as the kernel does. It cannot keep a
//! program from unmapping memory later, however often it is made. Memory that was mapped at the
//! query and is not mapped any more is detected by the next query: an answer is valid for
//! [`USES_MAX`] calls on average, and all answers about one area together for [`AREA_USES_MAX`].

use crate::errno::{Errno, Outcome};
use std::array::from_fn;
use std::ops::Range;

/// Pages of an area, one bit of a word for each.
const AREA_PAGES: usize = AREA_WORDS * WORD_PAGES;
const AREA_WORDS: usize = 8;
const WORD_PAGES: usize = u64::BITS as usize;
/// Number of bits of a place's index.
const PLACE_BITS: u32 = 6;
/// Number of places, for each thread and each kind of query.
const PLACES: usize = 1 << PLACE_BITS;
/// Areas in a place.
const PLACE_AREAS: usize = 4;
/// Most areas of a range that is remembered. The bytes of a longer range cost far more than the
/// query.
const RANGE_AREAS_MAX: usize = PLACES * PLACE_AREAS / 4;
/// How often an answer is used.
const USES_MAX: u32 = 1024;
/// How often all answers about one area together are used.
const AREA_USES_MAX: u32 = 64 * USES_MAX;
/// Distributes areas over the places: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Positive answers. In a full place, the area with the fewest remaining uses is evicted.
pub(crate) struct Known([[Area; PLACE_AREAS]; PLACES]);

#[derive(Clone, Copy)]
struct Area {
    number: usize,
    /// Pages whose answer is known.
    pages: [u64; AREA_WORDS],
    /// Remaining uses of these answers.
    uses: u32,
}

impl Area {
    const fn new(number: usize) -> Self {
        Self { number, pages: [0; AREA_WORDS], uses: 0 }
    }

    fn knows(&self, pages: &Range<usize>) -> bool {
        let known = self.pages.iter().zip(words(pages));
        self.uses > 0 && known.into_iter().all(|(known, asked)| asked & !known == 0)
    }

    /// Adds an answer. Answers without remaining uses are discarded, so that all their pages are
    /// queried again.
    fn learn(&mut self, pages: &Range<usize>) {
        if self.uses == 0 {
            self.pages = [0; AREA_WORDS];
        }
        self.pages.iter_mut().zip(words(pages)).for_each(|(known, asked)| *known |= asked);
        self.uses = AREA_USES_MAX.min(self.uses + USES_MAX);
    }
}

/// Pages of an area as bits.
fn words(pages: &Range<usize>) -> [u64; AREA_WORDS] {
    from_fn(|word| {
        let base = word * WORD_PAGES;
        let below = |page: usize| match page.saturating_sub(base) {
            bits @ ..WORD_PAGES => (1_u64 << bits) - 1,
            _ => u64::MAX,
        };
        below(pages.end) & !below(pages.start)
    })
}

/// The areas of a range of pages, and the pages in each.
fn areas(pages: Range<usize>) -> impl ExactSizeIterator<Item = (usize, Range<usize>)> + Clone {
    (pages.start / AREA_PAGES..pages.end.div_ceil(AREA_PAGES)).map(move |area| {
        let within = |page: usize| page.saturating_sub(area * AREA_PAGES).min(AREA_PAGES);
        (area, within(pages.start)..within(pages.end))
    })
}

impl Known {
    /// In allocated memory: as thread-local storage it would take the whole stack of a thread with
    /// the smallest one, and the C library would refuse to start that thread.
    pub(crate) fn boxed() -> Box<Self> {
        Box::new(Self::new())
    }

    const fn new() -> Self {
        // No area has this number.
        Self([[Area::new(usize::MAX); PLACE_AREAS]; PLACES])
    }

    /// Queries pages with `ask`, unless the answer is known.
    ///
    /// # Errors
    /// The kernel's negative answer.
    pub(crate) fn check(
        &mut self,
        pages: Range<usize>,
        ask: impl FnOnce(&Range<usize>) -> Outcome<()>,
    ) -> Outcome<()> {
        let page = rustix::param::page_size();
        let areas = areas(pages.start / page..pages.end / page);
        if areas.len() > RANGE_AREAS_MAX {
            return ask(&pages);
        }
        let mut parts = areas.clone();
        if parts.all(|(area, part)| self.find(area).is_some_and(|known| known.knows(&part))) {
            for (area, _) in areas {
                if let Some(known) = self.find(area) {
                    known.uses -= 1;
                }
            }
            return Ok(());
        }
        ask(&pages)?;
        areas.for_each(|(area, part)| self.place(area).learn(&part));
        Ok(())
    }

    fn find(&mut self, area: usize) -> Option<&mut Area> {
        self.0[place_of(area)].iter_mut().find(|known| known.number == area)
    }

    /// The entry for answers about an area, which may replace another area's.
    fn place(&mut self, area: usize) -> &mut Area {
        let places = &mut self.0[place_of(area)];
        let rank = |known: &&mut Area| (known.number != area, known.uses);
        let place = places.iter_mut().min_by_key(rank).expect("a place has areas");
        if place.number != area {
            *place = Area::new(area);
        }
        place
    }
}

/// The place of an area. Multiplied twice: for most distances between areas, once would not reach
/// all places.
fn place_of(area: usize) -> usize {
    let mixed = (area as u64).wrapping_mul(SPREAD);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(SPREAD);
    (mixed >> (u64::BITS - PLACE_BITS)) as usize
}

/// The pages of a range that is not empty. `EFAULT` if the range exceeds the address space.
pub(crate) fn pages(start: usize, len: usize) -> Outcome<Range<usize>> {
    let page = rustix::param::page_size();
    let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    Ok(start - start % page..end.ok_or(Errno::FAULT)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses of these pages.
    fn some(pages: Range<usize>) -> Range<usize> {
        let page = rustix::param::page_size();
        pages.start * page..pages.end * page
    }

    /// Checks pages, of which those below `end` are mapped. Returns whether the kernel was queried,
    /// and the answer.
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

    /// Goal: an answer applies to the pages that were queried, in any parts, and to no others.
    /// Negative answers are not remembered.
    #[test]
    fn an_answer_is_about_its_own_pages() {
        // Within a word of bits, at the border of two words, and at the border of two areas.
        for at in [0, WORD_PAGES - 3, WORD_PAGES - 1, AREA_PAGES - 2, 7 * AREA_PAGES - 1] {
            let mut known = Known::new();
            let mut asks =
                |pages: Range<usize>| asks(&mut known, at + pages.start..at + pages.end, at + 4);
            assert_eq!(asks(1..3), (true, true), "{at}");
            assert_eq!(asks(1..3), (false, true), "{at}");
            assert_eq!(asks(1..2), (false, true), "{at}: its beginning");
            assert_eq!(asks(2..3), (false, true), "{at}: its end");
            assert_eq!(asks(2..4), (true, true), "{at}: more than was asked");
            assert_eq!(asks(1..4), (false, true), "{at}: two answers together");
            for _ in 0..2 {
                assert_eq!(asks(1..5), (true, false), "{at}");
                assert_eq!(asks(9..10), (true, false), "{at}");
            }
            assert_eq!(asks(0..1), (true, true), "{at}: nothing was asked of it");
            assert_eq!(asks(AREA_PAGES + 9..AREA_PAGES + 10), (true, false), "{at}: another area");
        }
    }

    /// Goal: memory that is no longer mapped is detected, although it was used before.
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
        // The uses of many answers together are limited, too.
        for page in 2..AREA_PAGES {
            assert_eq!(asks(&mut known, page..page + 1, AREA_PAGES), (true, true));
        }
        let used = (0..).take_while(|_| asks(&mut known, 1..2, 0).1).count();
        assert_eq!(used, AREA_USES_MAX as usize);
        assert_eq!(asks(&mut known, 2..3, 0), (true, false));
    }

    /// Goal: buffers of any size are remembered, thousands of small ones or some large ones, and in
    /// the long run one call in hundreds makes a query.
    #[test]
    fn buffers_of_one_size_are_remembered() {
        for size in [1, 2, 3, 4, 5, 8, 16, 17, 64, 128, 256, 1024] {
            let mut known = Known::new();
            let count =
                (PLACES * PLACE_AREAS / 2 * AREA_PAGES / size.max(AREA_PAGES / 32)).min(4096);
            let mut ask_all = |len: usize| {
                let buffers = (0..count).map(|at| at * size..at * size + len.min(size));
                buffers.filter(|pages| asks(&mut known, pages.clone(), 1 << 30).0).count()
            };
            assert_eq!(ask_all(1), count);
            assert!(ask_all(1) <= count / 8, "{size}");
            let asked: usize = (0..100).map(|_| ask_all(1)).sum();
            assert!(asked <= count * 100 / 8, "{size}: {asked}");
        }
        let mut known = Known::new();
        let asked = (0..1_000_000).filter(|at| asks(&mut known, at % 512..at % 512 + 1, 512).0);
        assert!(asked.count() < 10_000, "a buffer in each page");
    }

    /// Goal: a range of any length is queried as a whole and evicts no remembered answers.
    #[test]
    fn of_long_ranges_nothing_is_remembered() {
        let mut known = Known::new();
        let (long, longer) = (RANGE_AREAS_MAX * AREA_PAGES, 1 << 30);
        assert_eq!(asks(&mut known, 0..long, longer), (true, true));
        for _ in 0..2 {
            assert_eq!(asks(&mut known, 1..longer, longer), (true, true));
        }
        assert!(!asks(&mut known, 0..1, longer).0 && asks(&mut known, long..long + 1, longer).0);
    }

    /// Goal: a range that exceeds the address space is rejected, not rounded.
    #[test]
    fn pages_are_whole() {
        let page = rustix::param::page_size();
        assert_eq!(pages(page + 1, 1), Ok(page..2 * page));
        assert_eq!(pages(page - 1, 2), Ok(0..2 * page));
        assert_eq!(pages(usize::MAX - 1, 1), Err(Errno::FAULT));
        assert_eq!(pages(usize::MAX, 2), Err(Errno::FAULT));
    }
}
