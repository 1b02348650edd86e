//! A log file and the older ones beside it: `FILE`, `FILE.1`, `FILE.2` and so on, the oldest last.
//!
//! Each step of a rotation is one rename. A process that is killed in between leaves a number out,
//! and loses no file. All calls may wait for a disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The names of a log's files.
#[derive(Clone, Debug)]
pub struct LogFiles {
    path: PathBuf,
    older: u32,
}

impl LogFiles {
    /// The log at `path`, beside which `older` files are kept.
    ///
    /// # Errors
    /// The path is relative, and there is no working directory.
    pub fn new(path: &Path, older: u32) -> io::Result<Self> {
        Ok(Self { path: std::path::absolute(path)?, older })
    }

    /// Opens the file to append to it, or creates it for this user alone. A last line that was cut
    /// short, as its writer was killed, is ended.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        // Only a regular file can be read back: reading a pipe would wait for another writer.
        let is_regular = fs::metadata(&self.path).is_ok_and(|found| found.is_file());
        let mut file = options.read(is_regular).open(&self.path)?;
        if is_regular && file.metadata()?.len() > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(file)
    }

    /// Gives each file the next number, without the oldest if there are too many, and creates
    /// another first one.
    ///
    /// # Errors
    /// Those of the file system. Files that have their next number keep it.
    pub fn rotate(&self) -> io::Result<File> {
        if self.older == 0 {
            missing_is_fine(fs::remove_file(&self.path))?;
        }
        for number in (0..self.older).rev() {
            missing_is_fine(fs::rename(self.numbered(number), self.numbered(number + 1)))?;
        }
        self.open()
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name.into()
    }
}

/// A number may be left out.
fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test alone, which goes with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("towpath-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// Names and texts of all files, sorted.
        fn all(&self) -> Vec<(String, String)> {
            let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
            let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            let mut all: Vec<_> =
                entries.map(|path| (name(&path), fs::read_to_string(path).unwrap())).collect();
            all.sort();
            all
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn texts(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    /// Goal: files move on by one number, the oldest goes, a number that is missing stays missing,
    /// and files of others stay.
    #[test]
    fn files_move_on() {
        let folder = Folder::new("rotated");
        let log = LogFiles::new(&folder.0.join("log"), 2).unwrap();
        fs::write(folder.0.join("log.bak"), "other").unwrap();
        let mut file = log.open().unwrap();
        for text in ["one\n", "two\n", "three\n"] {
            file.write_all(text.as_bytes()).unwrap();
            file = log.rotate().unwrap();
        }
        let expected =
            [("log", ""), ("log.1", "three\n"), ("log.2", "two\n"), ("log.bak", "other")];
        assert_eq!(folder.all(), texts(&expected));
        // As if the process had been killed before it made the first file.
        fs::remove_file(folder.0.join("log")).unwrap();
        log.rotate().unwrap().write_all(b"four\n").unwrap();
        assert_eq!(folder.all(), texts(&[("log", "four\n"), ("log.2", "three\n"), expected[3]]));
        let none = LogFiles { older: 0, ..log };
        none.rotate().unwrap();
        assert_eq!(folder.all()[0], ("log".to_owned(), String::new()));
    }

    /// Goal: a line that was cut short is ended, and nothing of a file is lost.
    #[test]
    fn a_torn_line_is_ended() {
        let folder = Folder::new("torn");
        let log = LogFiles::new(&folder.0.join("log"), 1).unwrap();
        fs::write(folder.0.join("log"), "one\ntw").unwrap();
        log.open().unwrap().write_all(b"three\n").unwrap();
        drop(log.open().unwrap());
        assert_eq!(folder.all(), texts(&[("log", "one\ntw\nthree\n")]));
    }
}
