//! PTX, as text. What its instructions do is in NVIDIA's Parallel Thread Execution ISA.

mod buffers;
mod instruction;

pub use buffers::buffers;
pub use instruction::{Instruction, inside};

/// The first kernel in a module.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    /// As they are declared.
    pub parameters: Vec<String>,
    /// How many threads a block has to have, where that is said.
    pub threads: Option<[u32; 3]>,
    /// The memory of a block whose size a launch says.
    pub shared: Option<String>,
    /// What stands between its braces, without comments.
    body: String,
}

/// Something of a kernel's body that ends with a semicolon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement<'a> {
    /// What a branch to it names.
    pub labels: Vec<&'a str>,
    /// An instruction or a directive.
    pub text: &'a str,
}

impl Entry {
    pub fn read(ptx: &str) -> Option<Self> {
        let (_, kernel) = ptx.split_once(".entry ")?;
        let (name, header) = kernel.split_once('(')?;
        let (header, rest) = header.split_once(')')?;
        let (directives, rest) = rest.split_once("\n{")?;
        let code = rest.split("\n}").next()?.lines().map(|line| line.split("//").next().unwrap_or(""));
        let parameters = header.split(',').map(str::trim).filter(|line| line.starts_with(".param "));
        Some(Self {
            name: name.trim().to_owned(),
            threads: directives.split_once(".reqntid").and_then(|(_, threads)| {
                let mut numbers = threads.lines().next()?.split(',').map(|number| number.trim().parse().ok());
                Some([numbers.next()??, numbers.next()??, numbers.next()??])
            }),
            shared: ptx
                .split_once(".extern .shared ")
                .and_then(|(_, array)| Some(declared(array.split_once(';')?.0)?.0)),
            parameters: parameters.map(str::to_owned).collect(),
            body: code.collect::<Vec<_>>().join("\n"),
        })
    }

    pub fn statements(&self) -> impl Iterator<Item = Statement<'_>> {
        self.body.split(';').map(|text| {
            let mut labels = Vec::new();
            // The braces that stand here are those of scopes.
            let mut rest = text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '{' | '}'));
            while let Some((label, behind)) = rest.split_once(':')
                && !label.contains(char::is_whitespace)
                && !behind.starts_with(':')
            {
                labels.push(label);
                rest = behind.trim_start();
            }
            Statement { labels, text: rest.trim_end() }
        })
    }
}

/// The name of what is declared, and how many it is: 0 for an array whose length is not said.
pub fn declared(declaration: &str) -> Option<(String, usize)> {
    let last = declaration.split_whitespace().last()?;
    Some(match last.split_once('[') {
        Some((name, "]")) => (name.to_owned(), 0),
        Some((name, length)) => (name.to_owned(), length.strip_suffix(']')?.parse().ok()?),
        None => (last.to_owned(), 1),
    })
}
