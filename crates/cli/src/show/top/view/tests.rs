//! Screens of many sizes.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;

use super::*;
use crate::show::top::app::tests::{busy, one, press, watched};
use crate::show::top::collect::{Found, Target};
use crate::show::top::frame::tests::start;

/// Returns the lines of a screen.
fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(line).collect()
}

#[test]
fn a_screen_of_80_by_24() {
    let mut app = watched();
    let lines = screen(&mut app, 80, 24);
    let has =
        |text: &str| assert!(lines.iter().any(|line| line.contains(text)), "{text}: {lines:#?}");
    assert!(lines[0].starts_with("towpath top  pid 7  run -- client"));
    has("in 48.0kb/s 0 p/s - super | out 0b/s");
    has("dropped: queue_full 4 +1/s");
    has("PROTO  PROGRAM");
    has("q quit  h help");
    let rows: Vec<&String> = lines.iter().filter(|line| line.starts_with("tcp ")).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows[0].contains("10.0.2.15:4000") && rows[0].contains("192.0.2.1:443"));
    assert!(rows[0].contains("24.0k") && rows[0].contains("established"), "{}", rows[0]);
    let wide = screen(&mut app, 160, 24);
    assert!(wide.iter().any(|line| line.contains("85us") && line.contains("1m30s")), "{wide:#?}");
}

/// Goal: no size panics, whatever is shown, and what matters most stays.
#[test]
fn every_size_works() {
    let show: [fn(&mut App); 5] = [
        |_| {},
        |app| drop(press(app, KeyCode::Enter)),
        |app| drop(press(app, KeyCode::Char('h'))),
        |app| "/no such".chars().for_each(|key| drop(press(app, KeyCode::Char(key)))),
        |app| app.update(&one(), Found::Ended),
    ];
    for show in show {
        let mut app = watched();
        show(&mut app);
        for width in (0..60).step_by(7).chain([80, 300]) {
            for height in (0..30).chain([100]) {
                screen(&mut app, width, height);
                press(&mut app, KeyCode::PageDown);
            }
        }
    }
    for mut app in [App::new(Target::All), App::new(one())] {
        for (width, height) in [(0, 0), (1, 1), (1, 9), (40, 10), (80, 24)] {
            screen(&mut app, width, height);
        }
    }
    let mut app = watched();
    let small = screen(&mut app, 40, 10);
    assert!(small[0].starts_with("towpath top"), "{small:#?}");
    assert!(small.iter().any(|line| line.starts_with("in 48.0kb/s")), "{small:#?}");
    assert!(small.iter().any(|line| line.contains("192.0.2.1:443")), "{small:#?}");
    assert!(small.iter().any(|line| line.contains("queue_full 4")), "{small:#?}");
}

#[test]
fn the_selected_row_is_on_the_screen() {
    let mut app = watched();
    let mut sample = busy(start(), 1);
    let template = sample.flows[0].clone();
    sample.flows = (100..300)
        .map(|number| {
            let mut flow = template.clone();
            flow.id = format!("{number}");
            flow.value["program"] = format!("port-{number}").into();
            flow
        })
        .collect();
    app.update(&one(), Found::One(Box::new(sample)));
    let shows = |app: &mut App, text: &str| screen(app, 80, 24).join("\n").contains(text);
    assert!(shows(&mut app, "port-100") && !shows(&mut app, "port-299"));
    press(&mut app, KeyCode::End);
    assert!(shows(&mut app, "port-299") && !shows(&mut app, "port-100"));
    press(&mut app, KeyCode::PageUp);
    press(&mut app, KeyCode::PageUp);
    assert!(!shows(&mut app, "port-299"));
    press(&mut app, KeyCode::Home);
    assert!(shows(&mut app, "port-100"));
}

#[test]
fn short_texts_are_packed_into_lines() {
    let texts = ["aaaa", "bbbb", "cccccccccccccccc", "d"].map(str::to_owned);
    assert_eq!(packed(&texts, "x: ", 15, 9), ["x: aaaa | bbbb", "cccccccccccccccc", "d"]);
    assert_eq!(packed(&texts, "x: ", 15, 1), ["x: aaaa | bbbb"]);
    assert_eq!(packed(&texts, "", 0, 9), texts);
    assert!(packed(&texts, "x: ", 15, 0).is_empty());
}
