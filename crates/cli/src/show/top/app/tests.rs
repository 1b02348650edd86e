//! Keys and updates change the state as they should.

use std::time::Instant;

use serde_json::json;

use super::*;
use crate::show::top::frame::tests::{flow, sample, start};

/// Returns a program's instance with three flows, which has been watched for a second.
pub(in crate::show::top) fn watched() -> App {
    let mut app = App::new(one());
    let start = start();
    for seconds in 0..2 {
        app.update(&one(), Found::One(Box::new(busy(start, seconds))));
    }
    app
}

pub(in crate::show::top) fn one() -> Target {
    Target::One("/run/towpath/7.control".into())
}

/// Returns a sample of it, with flows that have moved 1000, 2000 and 3000 bytes in each second.
pub(in crate::show::top) fn busy(start: Instant, seconds: u64) -> Sample {
    let stats = json!({
        "pid": 7, "command": "run -- client", "bytes_in": seconds * 6000, "bytes_out": 0,
        "dropped": { "queue_full": 3 + seconds },
    });
    let mut sample = sample(start, seconds, stats);
    let flow = |number: u64| flow(&format!("f{number}"), number * seconds * 1000, 0);
    sample.flows = (1..=3).map(flow).collect();
    sample.flows_open = 3;
    sample
}

pub(in crate::show::top) fn press(app: &mut App, code: KeyCode) -> Step {
    app.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn keys(app: &mut App, keys: &str) {
    for key in keys.chars() {
        assert!(matches!(press(app, KeyCode::Char(key)), Step::Stay), "{key}");
    }
}

fn ids(app: &App) -> String {
    app.rows().iter().map(|row| row.id.as_str()).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_fastest_flow_is_first_until_the_user_sorts() {
    let mut app = watched();
    assert_eq!(ids(&app), "f3 f2 f1");
    keys(&mut app, "r");
    assert_eq!(ids(&app), "f1 f2 f3");
    let columns = app.table().unwrap().columns.len();
    let by = app.order().by;
    keys(&mut app, &">".repeat(columns));
    assert_eq!(app.order(), Order { by, is_reversed: false }, "once around");
    press(&mut app, KeyCode::Left);
    assert_eq!(app.order().by, by - 1);
    keys(&mut app, &"<".repeat(by));
    assert_eq!(app.order().by, columns - 1, "the first is left of the last");
}

#[test]
fn text_filters() {
    let mut app = watched();
    keys(&mut app, "/established");
    assert!(app.is_typing);
    assert_eq!(ids(&app), "f3 f2 f1");
    // While typing, keys are text.
    keys(&mut app, "qpri");
    assert_eq!((app.filter.as_str(), ids(&app).as_str()), ("establishedqpri", ""));
    (0..4).for_each(|_| drop(press(&mut app, KeyCode::Backspace)));
    press(&mut app, KeyCode::Enter);
    assert!(!app.is_typing);
    assert_eq!((app.filter.as_str(), app.rows().len()), ("established", 3));
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.filter, "");
    keys(&mut app, &format!("/{}", "x".repeat(1000)));
    assert_eq!(app.filter.len(), FILTER_CHARS_MAX);
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.filter.as_str(), app.is_typing), ("", false));
}

#[test]
fn a_selected_flow_stays_selected() {
    let mut app = watched();
    assert_eq!(app.selected_index(&app.rows()), 0);
    keys(&mut app, "j");
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Down);
    assert_eq!(app.rows()[app.selected_index(&app.rows())].id, "f1");
    keys(&mut app, "r");
    assert_eq!(app.selected_index(&app.rows()), 0, "it is first now");
    press(&mut app, KeyCode::End);
    assert_eq!(app.rows()[app.selected_index(&app.rows())].id, "f3");
    press(&mut app, KeyCode::Home);
    press(&mut app, KeyCode::PageUp);
    press(&mut app, KeyCode::Up);
    assert_eq!(app.selected_index(&app.rows()), 0);
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.cover, Cover::Details);
    let rate = |app: &App| app.details()[0].1.clone();
    assert_eq!(rate(&app), "8.00kb/s");

    // The details follow it, and remain when it has ended.
    let start = start();
    let mut sample = busy(start, 100);
    sample.flows.remove(0);
    app.update(&one(), Found::One(Box::new(sample)));
    assert!(app.is_gone);
    assert_eq!(rate(&app), "8.00kb/s");
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.cover, Cover::None);
}

#[test]
fn a_pause_keeps_what_is_shown() {
    let mut app = watched();
    assert!(matches!(press(&mut app, KeyCode::Char('p')), Step::Tell(Command::Pause(true))));
    let before = app.frame.sums.clone();
    app.update(&one(), Found::One(Box::new(busy(start(), 50))));
    app.update(&one(), Found::Ended);
    assert_eq!((app.frame.sums.clone(), app.note.clone()), (before, None));
    assert!(matches!(press(&mut app, KeyCode::Char(' ')), Step::Tell(Command::Pause(false))));
}

#[test]
fn instances_are_chosen_from_a_list() {
    let mut app = App::new(Target::All);
    app.update(&Target::All, Found::All(Vec::new()));
    assert!(app.note.is_some() && app.rows().is_empty());
    assert!(matches!(press(&mut app, KeyCode::Enter), Step::Stay));
    let Target::One(path) = one() else { panic!("one") };
    let other = PathBuf::from("/other");
    let start = start();
    let both = |seconds| {
        let idle = sample(start, seconds, json!({ "pid": 8, "command": "attach 9" }));
        Found::All(vec![(other.clone(), idle), (path.clone(), busy(start, seconds))])
    };
    app.update(&Target::All, both(0));
    app.update(&Target::All, both(1));
    assert_eq!(app.note, None);
    assert_eq!(ids(&app), "/run/towpath/7.control /other", "the busy one is first");
    press(&mut app, KeyCode::Tab);
    match press(&mut app, KeyCode::Enter) {
        Step::Tell(Command::Watch(target)) => assert_eq!(target, one()),
        step => panic!("{step:?}"),
    }
    assert!(!app.is_list() && app.table().is_none(), "nothing is known yet");
    // An answer about the list comes too late.
    app.update(&Target::All, both(2));
    assert!(app.table().is_none());
    app.update(&one(), Found::One(Box::new(busy(start, 3))));
    assert_eq!(app.rows().len(), 3);
    app.update(&one(), Found::Ended);
    assert!(app.note.as_ref().is_some_and(|note| note.contains("has ended")));
    assert_eq!(app.rows().len(), 3, "its last figures");
    assert!(matches!(press(&mut app, KeyCode::Char('i')), Step::Tell(Command::Watch(Target::All))));
    assert!(matches!(press(&mut app, KeyCode::Char('i')), Step::Stay));
}

#[test]
fn keys_that_end_it() {
    let mut app = watched();
    let control = |char| KeyEvent::new(KeyCode::Char(char), KeyModifiers::CONTROL);
    assert!(matches!(app.press(control('c')), Step::Quit));
    assert!(matches!(app.press(control('z')), Step::Suspend));
    assert!(matches!(app.press(control('x')), Step::Stay));
    keys(&mut app, "/");
    assert!(matches!(app.press(control('c')), Step::Quit), "while typing, too");
    press(&mut app, KeyCode::Esc);
    assert!(matches!(press(&mut app, KeyCode::Char('q')), Step::Quit));
    // Keys without a meaning, and keys before anything is known.
    let mut empty = App::new(one());
    for code in [
        KeyCode::F(5),
        KeyCode::Delete,
        KeyCode::Tab,
        KeyCode::Enter,
        KeyCode::Down,
        KeyCode::PageDown,
        KeyCode::Right,
        KeyCode::Char('r'),
        KeyCode::Char('G'),
    ] {
        assert!(matches!(press(&mut empty, code), Step::Stay), "{code:?}");
    }
}
