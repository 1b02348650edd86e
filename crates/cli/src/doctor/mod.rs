//! `towpath doctor`: reports what this machine permits.
//!
//! What can be tried is tried, with the code that `towpath run` uses: [`trial`] does it in forked
//! processes, because namespaces and confinement cannot be undone. [`host`] looks at the rest.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};

use crate::config::args::DoctorArguments;
use crate::exit::{Ending, Failure};

use finding::{Finding, Status};

pub(crate) mod finding;
mod host;
mod trial;

/// Exit code if `towpath run` does not work here.
const BROKEN: u8 = 1;

/// Makes all checks and reports them.
pub(crate) fn doctor(arguments: &DoctorArguments) -> Result<Ending, Failure> {
    report(
        &examine(),
        arguments.json,
        "`towpath run` works here",
        "`towpath run` does not work here",
    )
}

/// Writes findings to standard output, with a summary: `works` or `broken`.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn report(
    findings: &[Finding],
    json: bool,
    works: &str,
    broken: &str,
) -> Result<Ending, Failure> {
    let is_broken = count(findings, Status::Failure) > 0;
    let text = match json {
        true => format!("{}\n", object(findings, !is_broken)),
        false => table(findings, works, broken),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Ending::Code(if is_broken { BROKEN } else { 0 }))
}

/// Makes all checks. The forks come first, as they need a process with one thread.
pub(crate) fn examine() -> Vec<Finding> {
    let tun = host::tun();
    let mut findings = vec![host::kernel()];
    let has_device = tun.status != Status::Failure;
    findings.push(tun);
    findings.extend(trial::of_run(has_device));
    let vhost_user = trial::of_vhost_user();
    findings.push(host::descriptors());
    findings.push(host::resolvers());
    findings.push(host::ping());
    findings.push(host::control());
    findings.extend(vhost_user);
    findings.push(host::memory());
    findings.push(host::kvm());
    findings.push(host::io_uring());
    findings
}

fn count(findings: &[Finding], status: Status) -> usize {
    findings.iter().filter(|finding| finding.status == status).count()
}

/// Returns a line for each finding, and a summary.
fn table(findings: &[Finding], works: &str, broken: &str) -> String {
    let mut text = String::new();
    for finding in findings {
        // Writing to a string cannot fail. The values may have names of files in them.
        let _ = writeln!(text, "{}", finding.to_string().replace(char::is_control, "?"));
    }
    let plural = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    };
    let failures = count(findings, Status::Failure);
    let warnings = plural(count(findings, Status::Warning), "warning");
    let summary = match failures {
        0 => format!("{works}; {warnings}"),
        _ => format!("{broken}: {}, {warnings}", plural(failures, "failure")),
    };
    text + &summary + "\n"
}

fn object(findings: &[Finding], works: bool) -> Value {
    let checks: Vec<_> = findings.iter().map(Finding::to_json).collect();
    json!({ "version": env!("CARGO_PKG_VERSION"), "works": works, "checks": checks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts() {
        let ok = Finding::ok("a", "fine");
        let warning = Finding::warning("b", "less \u{1b}[2J").fix("do this");
        assert_eq!(
            table(&[ok.clone(), warning.clone()], "all is well", "not well"),
            "ok       a            fine\n\
             warning  b            less ?[2J; fix: do this\n\
             all is well; 1 warning\n"
        );
        let failure = Finding::failure("c", "broken");
        let text = table(&[ok, warning, failure.clone(), failure], "all is well", "not well");
        let summary = "not well: 2 failures, 1 warning\n";
        assert!(text.ends_with(summary), "{text}");
    }
}
