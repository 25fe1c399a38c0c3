//! `cargo xtask deb`: Debian packages of the release, assembled by debhelper from
//! `packaging/debian`. ADR 0022 explains this choice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::architecture::Architecture;
use crate::run::run;
use crate::{demo, dist, lint, packages, sbom};

/// The options of `cargo xtask deb`.
#[derive(Args)]
pub struct Options {
    /// The architecture of the packages
    #[arg(long, value_name = "NAME", default_value = "amd64")]
    arch: Architecture,
}

/// The pages of the documentation that are only about the development of the project.
const NOT_SHIPPED: [&str; 3] = ["SUMMARY.md", "adding-a-field.md", "adding-a-tunnel.md"];

/// The files from which packages are built, in addition to `packaging/debian` and the documents.
#[derive(Debug)]
pub struct Inputs {
    architecture: Architecture,
    /// The directory of the stripped programs and their debug information.
    programs: PathBuf,
    /// The directory of the man pages and the shell completions.
    reference: PathBuf,
    /// The bill of materials.
    materials: PathBuf,
}

impl Inputs {
    /// Builds the release and generates the man pages.
    pub fn build(architecture: Architecture) -> Result<Self> {
        packages::ensure(&[&packages::BUILD[..], &packages::DEB].concat())?;
        let materials = sbom::write(architecture)?;
        let programs = dist::dist(architecture)?;
        Ok(Self { architecture, programs, reference: lint::reference()?, materials })
    }
}

/// Builds the packages for the architecture in `options`.
pub fn make(options: &Options) -> Result<()> {
    deb(options.arch).map(drop)
}

/// Builds the packages, checks them, and returns their paths. Their bytes depend only on the
/// inputs: the packages are assembled twice, and compared.
pub fn deb(architecture: Architecture) -> Result<Vec<PathBuf>> {
    let inputs = Inputs::build(architecture)?;
    let version = version()?;
    let directory = std::path::absolute(architecture.output("deb"))?;
    let again = directory.with_file_name("deb-again");
    let (made, again) = std::thread::scope(|scope| {
        let again = scope.spawn(|| assemble(&inputs, &version, &again));
        let made = assemble(&inputs, &version, &directory);
        (made, again.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let (made, again) = (made?, again?);
    for (one, other) in made.iter().zip(&again) {
        if fs::read(one)? != fs::read(other)? {
            bail!("{} and {} differ: compare them with diffoscope", one.display(), other.display());
        }
        println!("{}: {} bytes", one.display(), fs::metadata(one)?.len());
    }
    let mut lintian = Command::new("lintian");
    // The check may run as root. The changelog closes no Debian bug, so this is not checked.
    lintian.args(["--allow-root", "--fail-on", "error,warning"]).args(&made);
    run(&mut lintian)?;
    Ok(made)
}

/// The version of the packages. It is that of the workspace if the commit has the tag of this
/// version. Otherwise it sorts before that version, and after the versions of earlier commits.
pub fn version() -> Result<String> {
    let release = env!("CARGO_PKG_VERSION");
    let tags = git(&["tag", "--points-at", "HEAD"])?;
    if tags.lines().any(|tag| tag == format!("v{release}")) {
        return Ok(release.to_owned());
    }
    let count = git(&["rev-list", "--count", "HEAD"])?;
    let commit = demo::commit().context("the commit has no name")?.replace('-', ".");
    Ok(format!("{release}~{count}.{commit}"))
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).output().context("cannot start git")?;
    if !output.status.success() {
        bail!("git {} failed: packages need a clone of the repository", arguments.join(" "));
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Assembles packages in `directory`, which is emptied first. Returns their paths, sorted.
pub fn assemble(inputs: &Inputs, version: &str, directory: &Path) -> Result<Vec<PathBuf>> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let tree = directory.join("tree");
    fill(inputs, version, &tree)?;
    let mut rules = inputs.architecture.rules();
    rules.current_dir(&tree).env("OUTPUT", directory);
    // No time stamp in the packages is later than this.
    rules.env("SOURCE_DATE_EPOCH", git(&["log", "-1", "--format=%ct"])?);
    run(&mut rules)?;
    let mut made: Vec<_> = files(directory)?;
    made.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    Ok(made)
}

/// Copies all files that debhelper needs into `tree`.
fn fill(inputs: &Inputs, version: &str, tree: &Path) -> Result<()> {
    let Inputs { programs, reference, materials, .. } = inputs;
    let into = |directory: &str, files: &[PathBuf]| copy(files, &tree.join(directory));
    into("debian", &files(Path::new("packaging/debian"))?)?;
    let date = git(&["log", "-1", "--format=%cD"])?;
    let maintainer = git(&["log", "-1", "--format=%cn <%ce>"])?;
    let changelog = format!(
        "weft ({version}) unstable; urgency=medium\n\n  \
         * See /usr/share/doc/weft/CHANGELOG.md.\n\n \
         -- {maintainer}  {date}\n"
    );
    fs::write(tree.join("debian/changelog"), changelog)?;
    into("bin", &files(programs)?)?;
    let is_of_bench = |path: &PathBuf| name(path).starts_with("weft-bench");
    let (of_bench, of_weft): (Vec<_>, _) =
        files(&reference.join("man"))?.into_iter().partition(is_of_bench);
    into("man/weft", &of_weft)?;
    into("man/weft-bench", &of_bench)?;
    let completions = tree.join("completions");
    into("completions", &files(&reference.join("completions"))?)?;
    for program in ["weft", "weft-bench"] {
        fs::rename(completions.join(format!("{program}.bash")), completions.join(program))?;
    }
    let mut pages = files(Path::new("docs"))?;
    pages.retain(|path| name(path).ends_with(".md") && !NOT_SHIPPED.contains(&&*name(path)));
    pages.push("CHANGELOG.md".into());
    into("book", &pages)?;
    into("schema", &["docs/network.schema.json".into(), materials.clone()])?;
    let mut examples = files(Path::new("examples"))?;
    examples.push("packaging/without-namespaces.conf".into());
    examples.extend(files(Path::new("packaging/metrics"))?);
    into("examples", &examples)?;
    into("etc", &["packaging/network.toml".into()])
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The files in a directory, sorted.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("cannot list {}", directory.display());
    let entries = fs::read_dir(directory).with_context(failed)?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.with_context(failed)?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

pub fn copy(files: &[PathBuf], directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    for file in files {
        fs::copy(file, directory.join(name(file))).with_context(|| file.display().to_string())?;
    }
    Ok(())
}
