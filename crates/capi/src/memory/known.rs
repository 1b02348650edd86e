//! Pages about which the kernel was asked: whether there is memory, or whether it can be read.
//!
//! Programs hand in the same buffers again and again, and the kernel's answer costs a system call,
//! so each thread remembers answers, page by page: what was asked as one range may be used in parts
//! later, and what was asked in parts as one range. The question finds wrong addresses, as the
//! kernel would: it cannot keep a program from unmapping memory afterwards, whether it is asked
//! once or each time. What was mapped when it was asked and is not any more is found when it is
//! asked again: an answer is good for [`USES_MAX`] calls on average, and all those of an area
//! together for [`AREA_USES_MAX`].

use crate::errno::{Errno, Outcome};
use std::array::from_fn;
use std::ops::Range;

/// Pages of an area, by a bit of a word for each.
const AREA_PAGES: usize = AREA_WORDS * WORD_PAGES;
const AREA_WORDS: usize = 8;
const WORD_PAGES: usize = u64::BITS as usize;
/// Bits of the number of a place.
const PLACE_BITS: u32 = 6;
/// Places of each thread and for each question.
const PLACES: usize = 1 << PLACE_BITS;
/// Areas in a place.
const PLACE_AREAS: usize = 4;
/// Areas of one range. Of a longer one, whose bytes cost far more than the question, nothing is
/// remembered.
const RANGE_AREAS_MAX: usize = PLACES * PLACE_AREAS / 4;
/// How often an answer is used.
const USES_MAX: u32 = 1024;
/// How often answers about one area are used, all together.
const AREA_USES_MAX: u32 = 64 * USES_MAX;
/// Spreads areas over the places: 2^64 by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Answers that were yes. In a full place the area that can be used least gives way.
pub(crate) struct Known([[Area; PLACE_AREAS]; PLACES]);

#[derive(Clone, Copy)]
struct Area {
    number: usize,
    /// The pages of which the answer is known.
    pages: [u64; AREA_WORDS],
    /// How often that can still be used.
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

    /// Notes an answer. Used up ones are forgotten, so that all of them are asked again.
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

/// The areas of pages, and the pages in each.
fn areas(pages: Range<usize>) -> impl ExactSizeIterator<Item = (usize, Range<usize>)> + Clone {
    (pages.start / AREA_PAGES..pages.end.div_ceil(AREA_PAGES)).map(move |area| {
        let within = |page: usize| page.saturating_sub(area * AREA_PAGES).min(AREA_PAGES);
        (area, within(pages.start)..within(pages.end))
    })
}

impl Known {
    pub(crate) const fn new() -> Self {
        // No area has this number.
        Self([[Area::new(usize::MAX); PLACE_AREAS]; PLACES])
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

    /// Where answers about an area are, or will be.
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

/// The place of an area. Mixed twice: with most distances between areas, once is not enough to
/// reach all places.
fn place_of(area: usize) -> usize {
    let mixed = (area as u64).wrapping_mul(SPREAD);
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

    /// Goal: an answer is about the pages that were asked for, in whatever parts, and about no
    /// other; no is never remembered.
    #[test]
    fn an_answer_is_about_its_own_pages() {
        // Within a word of bits, where two words meet, and where two areas do.
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
        // Nor do many together.
        for page in 2..AREA_PAGES {
            assert_eq!(asks(&mut known, page..page + 1, AREA_PAGES), (true, true));
        }
        let used = (0..).take_while(|_| asks(&mut known, 1..2, 0).1).count();
        assert_eq!(used, AREA_USES_MAX as usize);
        assert_eq!(asks(&mut known, 2..3, 0), (true, false));
    }

    /// Goal: buffers are remembered, thousands of small ones or some large ones, whatever their
    /// size; and in the long run one call of hundreds asks.
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

    /// Goal: a range of any length is asked for whole, and does not drive out what is remembered.
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
