//! Builds an HTML file from sections, tables and pictures, with inline CSS: [`Page`].

use std::fmt::Write;

use super::escape::escaped;
use super::style::{CHART, COLOUR_SCHEME, PAGE};

/// An HTML page that grows section by section. It needs no network, no scripts and no other file.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// Makes an HTML page with the given title and no sections.
    pub fn new(title: &str) -> Self {
        Self { title: escaped(title), body: String::new() }
    }

    /// Adds a section to an HTML page: a heading, and a paragraph about the contents that follow.
    pub fn section(&mut self, heading: &str, about: &str) {
        let _ = write!(self.body, "<h2>{}</h2><p>{}</p>", escaped(heading), escaped(about));
    }

    /// Adds pictures to an HTML page, side by side if there is room. Each picture is an HTML or SVG element as a
    /// string, and is not escaped.
    pub fn pictures(&mut self, pictures: impl IntoIterator<Item = String>) {
        self.body.push_str("<div class='pictures'>");
        for picture in pictures {
            let _ = write!(self.body, "<figure>{picture}</figure>");
        }
        self.body.push_str("</div>");
    }

    /// Adds a table to an HTML page, with text in the first column and numbers in the others. `columns` has the column
    /// headings. Each entry of `rows` has one cell per column.
    pub fn table(&mut self, columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        self.body.push_str("<div class='wide'><table><thead><tr>");
        for column in columns {
            let _ = write!(self.body, "<th>{}</th>", escaped(column));
        }
        self.body.push_str("</tr></thead><tbody>");
        for row in rows {
            self.body.push_str("<tr>");
            for cell in row {
                let _ = write!(self.body, "<td>{}</td>", escaped(&cell));
            }
            self.body.push_str("</tr>");
        }
        self.body.push_str("</tbody></table></div>");
    }

    /// Returns the contents of the page's HTML file.
    pub fn html(&self) -> String {
        let Self { title, body } = self;
        format!(
            "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>\
             <meta name='color-scheme' content='light dark'><title>{title}</title><style>{COLOUR_SCHEME}{PAGE}{CHART}</style></head>\
             <body><h1>{title}</h1>{body}</body></html>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_one_file_with_escaped_text() {
        let mut page = Page::new("a & b");
        page.section("<one>", "about");
        page.table(&["name", "value"], [vec!["x<y".to_owned(), "1".to_owned()]]);
        page.pictures(["<svg></svg>".to_owned()]);
        let html = page.html();
        assert!(html.contains("<title>a &amp; b</title>") && html.contains("<h2>&lt;one&gt;</h2>"));
        assert!(html.contains("<td>x&lt;y</td>") && html.contains("<figure><svg></svg></figure>"));
        for outside in ["http", "<script", "<link", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
    }
}
