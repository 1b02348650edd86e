//! A table that is sorted, filtered and fitted to a width.

use std::cmp::Ordering;

/// A column of a table.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Least width in characters.
    pub(super) width: usize,
    /// It gets wider where there is room, up to its longest text.
    pub(super) grows: bool,
    /// Numbers are aligned to the right, and the largest comes first.
    pub(super) is_number: bool,
    /// Columns with low ranks are shown first where not all have room.
    pub(super) rank: u8,
}

/// A cell.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    /// What a column of numbers is sorted by.
    pub(super) number: f64,
}

/// A row.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// Names the row from one update to the next.
    pub(super) id: String,
    pub(super) cells: Vec<Cell>,
    /// Names and values that are shown of a selected row.
    pub(super) details: Vec<(String, String)>,
}

/// A table.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Row>,
}

/// The order of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// Index of a column.
    pub(super) by: usize,
    pub(super) is_reversed: bool,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: 0.0 }
    }

    pub(super) fn number(number: f64, text: impl Into<String>) -> Self {
        Self { text: text.into(), number }
    }
}

impl Table {
    /// Returns the rows that contain a text, in order.
    pub(super) fn view(&self, order: Order, filter: &str) -> Vec<&Row> {
        let filter = filter.to_lowercase();
        let has = |row: &&Row| {
            filter.is_empty()
                || row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&filter))
        };
        let mut rows: Vec<&Row> = self.rows.iter().filter(has).collect();
        let is_number = self.columns.get(order.by).is_some_and(|column| column.is_number);
        rows.sort_by(|one, other| {
            let by = order.by;
            let (Some(left), Some(right)) = (one.cells.get(by), other.cells.get(by)) else {
                return Ordering::Equal;
            };
            let order_of_cells = match is_number {
                true => right.number.total_cmp(&left.number),
                false => left.text.cmp(&right.text),
            };
            let turned = if order.is_reversed { order_of_cells.reverse() } else { order_of_cells };
            turned.then_with(|| one.id.cmp(&other.id))
        });
        rows
    }

    /// Returns the columns that fit a width, as their indexes and widths. One column separates two.
    pub(super) fn fit(&self, rows: &[&Row], width: usize) -> Vec<(usize, usize)> {
        let longest = |index: usize| {
            let cells = rows.iter().filter_map(|row| row.cells.get(index));
            cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
        };
        let mut ranked: Vec<usize> = (0..self.columns.len()).collect();
        ranked.sort_by_key(|index| self.columns[*index].rank);
        let (mut taken, mut left) = (Vec::new(), width + 1);
        for index in ranked {
            let own = self.columns[index].width + 1;
            if own > left && !taken.is_empty() {
                break;
            }
            left = left.saturating_sub(own);
            taken.push(index);
        }
        taken.sort_unstable();
        let mut fitted: Vec<(usize, usize)> =
            taken.into_iter().map(|index| (index, self.columns[index].width)).collect();
        // What is left goes to the columns that grow, one character to each in turn.
        let wanted: Vec<usize> = fitted
            .iter()
            .map(|(index, least)| match self.columns[*index].grows {
                true => longest(*index).max(*least),
                false => *least,
            })
            .collect();
        while left > 0 {
            let before = left;
            for ((_, own), wanted) in fitted.iter_mut().zip(&wanted) {
                if *own < *wanted && left > 0 {
                    (*own, left) = (*own + 1, left - 1);
                }
            }
            if left == before {
                break;
            }
        }
        fitted
    }

    /// Returns the line of titles.
    pub(super) fn titles(&self, fitted: &[(usize, usize)], order: Order) -> String {
        let cell = |(index, width): &(usize, usize)| {
            let column = &self.columns[*index];
            let mark = match (order.by == *index, order.is_reversed) {
                (true, false) => "*",
                (true, true) => "^",
                _ => "",
            };
            let title = format!("{}{mark}", column.title);
            pad(&title, *width, column.is_number)
        };
        fitted.iter().map(cell).collect::<Vec<_>>().join(" ")
    }

    /// Returns the line of a row.
    pub(super) fn line(&self, fitted: &[(usize, usize)], row: &Row) -> String {
        let cell = |(index, width): &(usize, usize)| {
            let text = row.cells.get(*index).map_or("", |cell| &cell.text);
            pad(text, *width, self.columns[*index].is_number)
        };
        fitted.iter().map(cell).collect::<Vec<_>>().join(" ")
    }
}

/// Returns a text of exactly this width; a longer one ends with `~`.
fn pad(text: &str, width: usize, to_the_right: bool) -> String {
    let len = text.chars().count();
    match len <= width {
        true if to_the_right => format!("{text:>width$}"),
        true => format!("{text:<width$}"),
        false => {
            let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
            if width > 0 {
                cut.push('~');
            }
            cut
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column { title: "NAME", width: 6, grows: true, is_number: false, rank: 0 },
        Column { title: "IN", width: 5, grows: false, is_number: true, rank: 1 },
        Column { title: "STATE", width: 8, grows: false, is_number: false, rank: 3 },
        Column { title: "OUT", width: 5, grows: false, is_number: true, rank: 2 },
    ];

    fn table() -> Table {
        let row = |id: &str, name: &str, into: f64| Row {
            id: id.to_owned(),
            cells: vec![
                Cell::text(name),
                Cell::number(into, format!("{into}")),
                Cell::text("Open"),
                Cell::number(0.0, "0"),
            ],
            details: Vec::new(),
        };
        let rows = vec![
            row("2", "b.example:443", 5.0),
            row("1", "a", 5.0),
            row("3", "longer.example:80", 70.0),
        ];
        Table { name: "test", columns: COLUMNS, rows }
    }

    fn ids(table: &Table, by: usize, is_reversed: bool, filter: &str) -> String {
        table.view(Order { by, is_reversed }, filter).iter().map(|row| row.id.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let table = table();
        assert_eq!(ids(&table, 1, false, ""), "312", "numbers: the largest first");
        assert_eq!(ids(&table, 1, true, ""), "123");
        assert_eq!(ids(&table, 0, false, ""), "123", "texts: by the alphabet");
        assert_eq!(ids(&table, 0, false, "EXAMPLE"), "23");
        assert_eq!(ids(&table, 0, false, "open"), "123");
        assert_eq!(ids(&table, 0, false, "nothing like it"), "");
        assert_eq!(ids(&table, 99, false, ""), "213", "no such column: as they came");
    }

    #[test]
    fn columns_fit_every_width() {
        let table = table();
        let rows = table.view(Order::default(), "");
        for width in 0..120 {
            let fitted = table.fit(&rows, width);
            assert!(!fitted.is_empty());
            let all = fitted.iter().map(|(_, width)| width + 1).sum::<usize>() - 1;
            assert!(all <= width.max(6), "{width}: {fitted:?}");
            for line in [table.titles(&fitted, Order::default()), table.line(&fitted, rows[2])] {
                assert_eq!(line.chars().count(), all, "{width}: {line}");
            }
        }
        assert_eq!(table.fit(&rows, 18), [(0, 6), (1, 5), (3, 5)], "STATE has the last rank");
        let fitted = table.fit(&rows, 80);
        assert_eq!(fitted, [(0, 17), (1, 5), (2, 8), (3, 5)]);
        assert_eq!(table.line(&fitted, rows[2]), "longer.example:80    70 Open         0");
        let order = Order { by: 1, is_reversed: true };
        assert_eq!(table.titles(&fitted, order), "NAME                IN^ STATE      OUT");
        assert_eq!(table.line(&table.fit(&rows, 12), rows[2]), "longe~    70");
    }
}
