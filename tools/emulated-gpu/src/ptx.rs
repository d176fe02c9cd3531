//! Parses PTX, the assembly language of CUDA kernels: a module's first kernel ([`Entry`]), its statements and
//! instructions, and the [`buffers()`] that it writes. PTX is specified by NVIDIA's Parallel Thread Execution ISA.

mod buffers;
mod instruction;

pub use buffers::buffers;
pub use instruction::{Instruction, inside};

/// A module's first kernel in PTX: its name, parameters, required block size, shared memory and body.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    /// The declarations of the kernel's parameters, as PTX text.
    pub parameters: Vec<String>,
    /// The block size that the kernel requires (`.reqntid` in PTX), in threads along x, y and z; `None` if it accepts
    /// any size.
    pub threads: Option<[u32; 3]>,
    /// The name of the kernel's dynamic shared memory, whose size is given at launch; `None` if the kernel has none.
    pub shared: Option<String>,
    /// The kernel's body between its braces, without comments.
    body: String,
}

/// A statement in a kernel's PTX body, which ends with a semicolon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement<'a> {
    /// The labels before the statement, to which branches can jump.
    pub labels: Vec<&'a str>,
    /// The statement's instruction or directive.
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
            // Braces before a statement open or close scopes.
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

/// Returns the name in a PTX declaration, and the number of elements that it declares: 0 for an array without a length.
pub fn declared(declaration: &str) -> Option<(String, usize)> {
    let last = declaration.split_whitespace().last()?;
    Some(match last.split_once('[') {
        Some((name, "]")) => (name.to_owned(), 0),
        Some((name, length)) => (name.to_owned(), length.strip_suffix(']')?.parse().ok()?),
        None => (last.to_owned(), 1),
    })
}
