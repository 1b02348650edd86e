//! containers.conf, the settings of podman and buildah, as far as they choose helper programs.
//!
//! podman reads the file of the distribution, that of the system, and the user's, each with the
//! files of a folder beside it in the order of their names. A later value replaces an earlier one;
//! a list that contains `{append=true}`, which podman 5 knows, extends it. podman 4.3 reads the
//! same files.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use toml::de::{DeTable, DeValue};

use super::folders::Folders;
use super::probe;

/// The folders in which podman looks unless a file names others. `$BINDIR`, with which a folder may
/// begin, is the folder of podman itself.
const HELPER_FOLDERS: [&str; 4] = [
    "/usr/local/libexec/podman",
    "/usr/local/lib/podman",
    "/usr/libexec/podman",
    "/usr/lib/podman",
];

/// What podman takes from all files together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// `helper_binaries_dir`.
    pub(super) folders: Vec<String>,
    /// `network_cmd_path`: slirp4netns.
    pub(super) slirp4netns: Option<String>,
    /// `default_rootless_network_cmd`: pasta or slirp4netns.
    pub(super) network: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { folders: HELPER_FOLDERS.map(str::to_owned).into(), slirp4netns: None, network: None }
    }
}

impl Settings {
    /// Reads all files but `without`.
    ///
    /// # Errors
    /// A file that exists and cannot be read or parsed.
    pub(super) fn read(folders: &Folders, without: &Path) -> anyhow::Result<Self> {
        let mut settings = Self::default();
        for path in files(folders).into_iter().filter(|path| path != without) {
            match fs::read_to_string(&path) {
                Ok(text) => settings.add(&text).map_err(|error| {
                    anyhow!("cannot understand {}: {error}; correct the file", path.display())
                })?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot read {}", path.display()));
                }
            }
        }
        Ok(settings)
    }

    /// Adds the settings of a file.
    fn add(&mut self, text: &str) -> Result<(), String> {
        let table = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
        let section = |name: &str| match table.get_ref().get(name).map(|value| value.get_ref()) {
            Some(DeValue::Table(section)) => Some(section.clone()),
            _ => None,
        };
        if let Some(engine) = section("engine") {
            if let Some(DeValue::Array(list)) =
                engine.get("helper_binaries_dir").map(|v| v.get_ref())
            {
                let names: Vec<String> = list.iter().filter_map(|v| string(v.get_ref())).collect();
                match list.iter().any(|value| appends(value.get_ref())) {
                    true => self.folders.extend(names),
                    false => self.folders = names,
                }
            }
            if let Some(path) = engine.get("network_cmd_path").and_then(|v| string(v.get_ref())) {
                self.slirp4netns = Some(path).filter(|path| !path.is_empty());
            }
        }
        if let Some(network) = section("network") {
            let command = network.get("default_rootless_network_cmd");
            if let Some(command) = command.and_then(|v| string(v.get_ref())) {
                self.network = Some(command).filter(|command| !command.is_empty());
            }
        }
        Ok(())
    }

    /// Returns the helper program that podman finds in its folders.
    pub(super) fn helper(&self, podman: &Path, name: &str) -> Option<PathBuf> {
        let first = env::var_os("CONTAINERS_HELPER_BINARY_DIR").map(PathBuf::from);
        let listed = self.folders.iter().map(|folder| match folder.strip_prefix("$BINDIR") {
            Some(rest) => {
                let own = podman.parent().unwrap_or(Path::new("/"));
                own.join(rest.trim_start_matches('/'))
            }
            None => PathBuf::from(folder),
        });
        let all = first.into_iter().chain(listed).map(|folder| folder.join(name));
        all.into_iter().find(|file| probe::is_program(file))
    }
}

/// Returns all files in the order in which podman reads them.
fn files(folders: &Folders) -> Vec<PathBuf> {
    let mut all = Vec::new();
    match env::var_os(ONLY_FILE).filter(|path| !path.is_empty()) {
        Some(only) => all.push(PathBuf::from(only)),
        None => {
            all.push("/usr/share/containers/containers.conf".into());
            with_folder(&mut all, "/etc/containers/containers.conf".into());
            if !folders.are_of_root {
                with_folder(&mut all, folders.config.join("containers/containers.conf"));
            }
        }
    }
    all.extend(env::var_os("CONTAINERS_CONF_OVERRIDE").map(PathBuf::from));
    all
}

/// Adds a file, and those of the folder of the same name with the suffix `.d`.
fn with_folder(all: &mut Vec<PathBuf>, file: PathBuf) {
    let mut folder = file.clone().into_os_string();
    folder.push(".d");
    all.push(file);
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut more: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    more.retain(|path| path.extension().is_some_and(|suffix| suffix == "conf"));
    more.sort_unstable();
    all.extend(more);
}

/// The environment variable that names a file which podman reads in place of all others.
pub(super) const ONLY_FILE: &str = "CONTAINERS_CONF";

fn string(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        _ => None,
    }
}

/// Whether a member of a list makes it extend an earlier list.
fn appends(value: &DeValue<'_>) -> bool {
    let DeValue::Table(attributes) = value else { return false };
    let append = attributes.get("append").map(|value| value.get_ref());
    matches!(append, Some(DeValue::Boolean(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> Settings {
        let mut settings = Settings::default();
        for text in texts {
            settings.add(text).unwrap();
        }
        settings
    }

    /// Goal: a later list replaces an earlier one, unless it says that it extends it.
    #[test]
    fn lists_replace_or_extend() {
        assert_eq!(read(&["", "[containers]\nipcns=\"private\"\n"]), Settings::default());
        let replaced = read(&["[engine]\nhelper_binaries_dir = [\"/a\", \"/b\"]"]);
        assert_eq!(replaced.folders, ["/a", "/b"]);
        let extended = read(&["engine.helper_binaries_dir = [\"/a\", {append=true}]"]);
        assert_eq!(extended.folders.last().map(String::as_str), Some("/a"));
        assert_eq!(extended.folders.len(), HELPER_FOLDERS.len() + 1);
        let again = read(&[
            "engine.helper_binaries_dir = [\"/a\"]",
            "engine.helper_binaries_dir = [\"/b\", {append=false}]",
        ]);
        assert_eq!(again.folders, ["/b"]);
    }

    #[test]
    fn other_settings_of_helpers() {
        let settings = read(&[
            "[engine]\nnetwork_cmd_path=\"/x/slirp4netns\"\n[network]\n\
             default_rootless_network_cmd=\"slirp4netns\"",
            "[engine]\nnetwork_cmd_path=\"\"",
        ]);
        assert_eq!(settings.slirp4netns, None, "an empty value is none");
        assert_eq!(settings.network.as_deref(), Some("slirp4netns"));
        // Values of other types are podman's to report.
        assert_eq!(
            read(&["engine = 3", "[engine]\nhelper_binaries_dir=\"x\""]),
            Settings::default()
        );
        assert!(Settings::default().add("[engine").is_err());
    }

    #[test]
    fn the_folder_of_podman_has_a_name() {
        let settings = Settings { folders: vec!["$BINDIR".to_owned()], ..Settings::default() };
        let sh = probe::in_path("sh").expect("a shell");
        if env::var_os("CONTAINERS_HELPER_BINARY_DIR").is_none() {
            assert_eq!(settings.helper(&sh, "sh"), Some(sh.clone()));
            assert_eq!(settings.helper(Path::new("/no/podman"), "sh"), None);
        }
    }
}
