//! Compares the text and tokens of conversations, rendered by chat templates, with those of the Transformers library.
//! `fixtures/make_chats.py` wrote the latter to a file.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;
use stageline_data::{ChatVariables, Encode, Message, TokenError, TokenFile, TokenOptions, Tokenizer, prepare};

use crate::tokenizer::fixture;
use crate::tokens;

#[derive(Deserialize)]
struct Expected {
    /// The sources of the chat templates, by the name of the template and its variant: `plain`, or `marked` with the
    /// tags `generation` and `endgeneration`.
    templates: BTreeMap<String, BTreeMap<String, String>>,
    special: BTreeMap<String, String>,
    /// The messages of each conversation as JSON, by the name of the conversation. The type is raw JSON, because the
    /// order of the fields matters, which a `Value` would not keep.
    conversations: BTreeMap<String, Box<RawValue>>,
    cases: Vec<Case>,
    /// JSON objects with the fields `tools` and `chat_template_kwargs`, by the name under which test cases refer to
    /// them.
    variables: BTreeMap<String, Box<RawValue>>,
    /// The test cases whose conversations have tools or other template variables.
    with_variables: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    variant: String,
    conversation: String,
    asks: bool,
    /// The name of the tools and template variables of this test case; empty if it has none.
    #[serde(default)]
    variables: String,
    /// The error message with which the template rejects the conversation; `None` if the template renders it.
    error: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    ids: Vec<u32>,
    /// For each token of the conversation, 1 if it is a target in the loss, and 0 otherwise; `None` if the template
    /// marks no answers, or rejects the conversation.
    trained: Option<Vec<u8>>,
}

fn expected() -> Expected {
    serde_json::from_str(&fs::read_to_string(fixture("chats-expected.json")).unwrap()).unwrap()
}

/// Writes the files of a tokenizer with a chat template to `folder`: the test tokenizer with one more special token,
/// and the settings with the template.
fn write_tokenizer(folder: &Path, special: &BTreeMap<String, String>, template: &str) {
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(fixture("bpe.json")).unwrap()).unwrap();
    let mut end = json["added_tokens"][0].clone();
    (end["id"], end["content"]) = (300.into(), special["eos_token"].clone().into());
    json["added_tokens"].as_array_mut().unwrap().push(end);
    fs::write(folder.join("tokenizer.json"), json.to_string()).unwrap();
    let object = serde_json::json!({"content": special["eos_token"], "special": true});
    let settings = serde_json::json!({
        "bos_token": special["bos_token"], "eos_token": object, "unk_token": null, "chat_template": template,
    });
    fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
}

/// Renders a conversation with a single message, `a`, by the chat template in `folder`. Returns the text, or the error
/// message.
fn rendered(folder: &Path) -> Result<String, String> {
    let tokenizer = Tokenizer::in_folder(folder).unwrap().unwrap();
    let chat = tokenizer.chat(&[Message::new("user", "a")], &ChatVariables::default(), false);
    chat.map(|chat| chat.text).map_err(|error| error.to_string())
}

/// Returns 1 for each token of a token file that is a target in the loss, and 0 for each other token.
fn targets(file: &TokenFile) -> Vec<u8> {
    (0..file.len()).map(|position| u8::from(file.is_target(position))).collect()
}

#[test]
fn texts_and_refusals_are_those_of_transformers() {
    let expected = expected();
    assert_eq!((expected.cases.len(), expected.with_variables.len()), (168, 72));
    let folder = tempfile::tempdir().unwrap();
    for case in expected.cases.iter().chain(&expected.with_variables) {
        let Case { template, variant, conversation, asks, variables, .. } = case;
        let about = format!("{template} {variant} {conversation} {asks} {variables}");
        write_tokenizer(folder.path(), &expected.special, &expected.templates[&case.template][&case.variant]);
        let tokenizer = Tokenizer::in_folder(folder.path()).unwrap().unwrap();
        let messages: Vec<Message> = serde_json::from_str(expected.conversations[&case.conversation].get()).unwrap();
        let variables = expected.variables.get(variables).map_or("{}", |json| json.get());
        let found = tokenizer.chat(&messages, &serde_json::from_str(variables).unwrap(), *asks);
        match (&case.error, found) {
            (None, Ok(found)) => {
                assert_eq!(found.text, case.text, "{about}");
                assert_eq!(tokenizer.encode(&found.text).unwrap(), case.ids, "{about}");
            }
            (Some(error), Err(TokenError::Template { path, message })) => {
                assert!(path.ends_with("tokenizer_config.json"), "{about}: {path:?}");
                // The libraries word the error differently if a template reads an attribute of a missing value.
                assert!(message.contains(error) || error.contains("no attribute"), "{about}: {message}, {error}");
            }
            (error, found) => panic!("{about}: {error:?}, {found:?}"),
        }
    }
}

/// Tests which tokens of a conversation are targets in the loss. In three of the templates an answer ends with its
/// message, so they must give the same targets without marks.
#[test]
fn the_trained_tokens_are_those_of_transformers() {
    let expected = expected();
    let root = tempfile::tempdir().unwrap();
    let of = |case: &Case, variant: &str| {
        let folder = root.path().join(format!("{} {} {variant} {}", case.template, case.conversation, case.variables));
        fs::create_dir(&folder).unwrap();
        write_tokenizer(&folder, &expected.special, &expected.templates[&case.template][variant]);
        let tokenizer = Tokenizer::in_folder(&folder).unwrap().unwrap();
        let messages = expected.conversations[&case.conversation].get();
        let line = match expected.variables.get(&case.variables) {
            Some(json) => format!("{{\"messages\": {messages},{}", &json.get()[1..]),
            None => format!("{{\"messages\": {messages}}}"),
        };
        fs::write(folder.join("a.jsonl"), line).unwrap();
        let options = TokenOptions { folder: Some(folder.clone()), end_of_document: Some(7), ..Default::default() };
        let file = prepare(&folder.join("a.jsonl"), &tokenizer, &options).unwrap();
        (tokens(&file), targets(&file))
    };
    let (mut with_marks, mut without) = (0, 0);
    for case in expected.cases.iter().chain(&expected.with_variables).filter(|case| !case.asks) {
        let Some(trained) = &case.trained else { continue };
        assert_eq!(of(case, "marked"), (case.ids.clone(), trained.clone()), "{} {}", case.template, case.conversation);
        with_marks += 1;
        let ends_with_answer = ["headers", "alternating", "ipython"].contains(&case.template.as_str());
        if ends_with_answer && case.conversation != "first" {
            assert_eq!(of(case, "plain"), (case.ids.clone(), trained.clone()), "{} without marks", case.conversation);
            without += 1;
        }
    }
    assert_eq!((with_marks, without), (55, 17));
}

/// Tests templates that render an answer differently if it is the last message, or whose generation prompt has text
/// that the rendered answer lacks. The templates of Qwen3, DeepSeek-R1 and Mistral are like this.
#[test]
fn answers_are_found_though_the_text_before_them_or_after_them_changes() {
    let root = tempfile::tempdir().unwrap();
    let thoughts = "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.role == 'assistant' and loop.last %}<think></think>\
                    {% endif %}{{ m.content.split('</think>')[-1] | trim }}{{ '<end>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";
    let begun = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}{% if add_generation_prompt %}\
                 {{ '<assistant><think>\\n' }}{% endif %}";
    let system = "{% for m in messages %}{% if m.role == 'user' %}[{% if loop.last and messages[0].role == 'system' %}\
                  {{ messages[0].content + ':' }}{% endif %}{{ m.content }}]{% elif m.role == 'assistant' %} {{ m.content }}.{% endif %}{% endfor %}";
    let asked = "{% for m in messages %}{{ m.role[0] + m.content }}{% endfor %}{% if add_generation_prompt %}a{% else %}EOS{% endif %}";
    let ended = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|e|>\\n' }}{% endfor %}{% if add_generation_prompt %}\
                 {{ '<|assistant|>\\n' }}{% else %}<|eos|>{% endif %}";
    let message = |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
    let [s, u, v] = [message("system", "S"), message("user", "u"), message("user", "v")];
    let [a, b, x] = [" A ", "B", "<b>B</b>"].map(|content| message("assistant", content));
    let t = message("assistant", "<think>hm</think>A");
    let chats = [
        (thoughts, vec![&u, &a, &v, &b], vec!["A<end>\n", "<think></think>B<end>\n"]),
        (begun, vec![&u, &b, &v, &b], vec!["B", "B"]),
        (system, vec![&s, &u, &b, &v, &b], vec!["B.", "B."]),
        (asked, vec![&u, &b, &v, &b], vec!["B", "BEOS"]),
        (thoughts, vec![&u, &t, &v, &b], vec!["A<end>\n", "<think></think>B<end>\n"]),
        (thoughts, vec![&a, &u, &b], vec!["A<end>\n", "<think></think>B<end>\n"]),
        (begun, vec![&u, &x, &v, &x], vec!["<b>B</b>", "<b>B</b>"]),
        (ended, vec![&u, &b, &v, &b], vec!["B<|e|>\n", "B<|e|>\n<|eos|>"]),
    ];
    for (at, (template, messages, answer_texts)) in chats.into_iter().enumerate() {
        let folder = root.path().join(at.to_string());
        fs::create_dir(&folder).unwrap();
        write_tokenizer(&folder, &expected().special, template);
        let tokenizer = Tokenizer::in_folder(&folder).unwrap().unwrap();
        fs::write(folder.join("a.jsonl"), serde_json::json!({ "messages": messages }).to_string()).unwrap();
        let options = TokenOptions { folder: Some(folder.clone()), ..Default::default() };
        let file = prepare(&folder.join("a.jsonl"), &tokenizer, &options).unwrap();
        let (tokens, targets) = (tokens(&file), targets(&file));
        let mut answers = vec![Vec::new()];
        for (token, is_target) in tokens.iter().zip(&targets) {
            match is_target {
                1 => answers.last_mut().unwrap().push(*token),
                _ if answers.last().unwrap().is_empty() => {}
                _ => answers.push(Vec::new()),
            }
        }
        answers.retain(|answer| !answer.is_empty());
        let answers: Vec<_> = answers.iter().map(|answer| tokenizer.decode(answer).unwrap()).collect();
        assert_eq!(answers, answer_texts, "{template}");
    }
}

#[test]
fn a_template_in_a_file_of_its_own_comes_first_and_a_list_has_a_default() {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path(), &expected().special, "settings");
    let text = || {
        let tokenizer = Tokenizer::in_folder(folder.path()).unwrap().unwrap();
        let fingerprint = tokenizer.fingerprint();
        tokenizer
            .chat(&[Message::new("user", "a")], &ChatVariables::default(), false)
            .map(|chat| (chat.text, fingerprint))
    };
    let of_settings = text().unwrap();
    assert_eq!(of_settings.0, "settings");
    fs::write(folder.path().join("chat_template.jinja"), "{{ messages[0].content }}{{ eos_token }}").unwrap();
    let of_file = text().unwrap();
    assert_eq!(of_file.0, "a</s>");
    assert_ne!(of_file.1, of_settings.1, "another template gives other tokens");
    fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    let list = serde_json::json!({"chat_template": [
        {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"},
    ]});
    fs::write(folder.path().join("tokenizer_config.json"), list.to_string()).unwrap();
    assert_eq!(text().unwrap().0, "plain");
    fs::write(folder.path().join("tokenizer_config.json"), "{}").unwrap();
    assert!(matches!(text(), Err(TokenError::NoChatTemplate)));
}

#[test]
fn a_template_for_tools_is_used_for_conversations_with_tools() {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path(), &expected().special, "");
    let list = serde_json::json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]});
    fs::write(folder.path().join("tokenizer_config.json"), list.to_string()).unwrap();
    let text = |variables: &str| {
        let tokenizer = Tokenizer::in_folder(folder.path()).unwrap().unwrap();
        let variables = serde_json::from_str(variables).unwrap();
        let chat = tokenizer.chat(&[Message::new("user", "a")], &variables, false).unwrap();
        (chat.text, tokenizer.fingerprint())
    };
    let tools = r#"{"tools": [{}, {}]}"#;
    let of_list = text(tools);
    assert_eq!(
        (of_list.0.as_str(), text("{}").0.as_str(), text(r#"{"tools": []}"#).0.as_str()),
        ("2 tools", "plain", "plain")
    );
    fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    fs::write(folder.path().join("additional_chat_templates/tool_use.jinja"), "of the file").unwrap();
    let of_file = text(tools);
    assert_eq!(of_file.0, "of the file");
    assert_ne!(of_file.1, of_list.1, "another template gives other tokens");
    fs::remove_dir_all(folder.path().join("additional_chat_templates")).unwrap();
    fs::write(folder.path().join("chat_template.jinja"), "alone").unwrap();
    assert_eq!(text(tools).0, "alone");
}

#[test]
fn a_character_that_marks_answers_is_refused_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path(), &expected().special, "{% generation %}a{% endgeneration %}");
    let tokenizer = Tokenizer::in_folder(folder.path()).unwrap().unwrap();
    let chat = |content: &str, variables: &str| {
        let variables = serde_json::from_str(variables).unwrap();
        tokenizer.chat(&[Message::new("user", content)], &variables, false).map_err(|error| error.to_string())
    };
    assert_eq!(chat("a", r#"{"tools": [{"a": "b"}]}"#).unwrap().answers.len(), 1);
    let nested = r#"{"tools": [{"a": ["\ufdd1"]}]}"#;
    let name = r#"{"chat_template_kwargs": {"a": {"\ufdd0": 1}}}"#;
    for (content, variables) in [("\u{fdd0}", "{}"), ("a", nested), ("a", name)] {
        let error = chat(content, variables).unwrap_err();
        assert!(error.contains("a character by which answers are marked"), "{error}");
    }
}

/// Tests that a template prints the same date as the command `date`.
#[cfg(unix)]
#[test]
fn a_template_prints_the_date() {
    let folder = tempfile::tempdir().unwrap();
    let format = "%A, %d %B %Y, day %j";
    write_tokenizer(folder.path(), &expected().special, &format!("{{{{ strftime_now('{format}') }}}}"));
    let today = || {
        let output = std::process::Command::new("date").env("LC_ALL", "C").args(["-u", &format!("+{format}")]).output();
        String::from_utf8(output.unwrap().stdout).unwrap().trim_end().to_owned()
    };
    let before = today();
    let tokenizer = Tokenizer::in_folder(folder.path()).unwrap().unwrap();
    let found = tokenizer.chat(&[Message::new("user", "a")], &ChatVariables::default(), false).unwrap().text;
    assert!([before, today()].contains(&found), "{found}");
}

/// Tests templates that are malformed, that do not terminate, or that mark only the start of an answer. The tokenizer
/// must still be usable for plain text.
#[test]
fn a_template_that_fails_is_an_error_only_for_conversations() {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path(), &expected().special, "");
    let refused = |template: &str| {
        fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        let tokenizer = Tokenizer::in_folder(folder.path()).unwrap().unwrap();
        assert!(!tokenizer.encode("the stages").unwrap().is_empty());
        let error = tokenizer.chat(&[Message::new("user", "a")], &ChatVariables::default(), false).unwrap_err();
        assert!(matches!(error, TokenError::Template { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("chat_template.jinja fails: ") && message.len() < 700, "{message}");
        message
    };
    assert!(refused("{% for message in messages %}").contains("syntax error"));
    assert!(refused("{{ messages[0].nothing.at_all }}").contains("undefined"));
    for missing in ["{{ messages[0].nothing | tojson }}", "{{ {'name': [messages[0].nothing]} | tojson }}"] {
        assert!(refused(missing).contains("tojson of a value that the conversation does not have"), "{missing}");
    }
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}\
                   {% endfor %}";
    assert!(refused(endless).contains("fuel"));
    assert!(refused("{{ strftime_now('%Q') }}").contains("strftime_now does not know `%Q`"));
    assert!(refused("{% generation %}a").contains("no beginning or no end"));
    assert!(refused("a{% endgeneration %}").contains("no beginning or no end"));
    let deep = format!("{}1{}", "(".repeat(10_000), ")".repeat(10_000));
    refused(&format!("{{{{ {deep} }}}}"));
    let in_settings = "{\"chat_template\": ";
    fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), in_settings).unwrap();
    let tokenizer = Tokenizer::in_folder(folder.path()).unwrap().unwrap();
    let error = tokenizer.chat(&[Message::new("user", "a")], &ChatVariables::default(), false).unwrap_err();
    assert!(error.source().is_none() && error.to_string().contains("tokenizer_config.json fails: EOF"), "{error}");
}

/// Tests templates that write special tokens which are not named in the settings, or not in the vocabulary.
#[test]
fn tokens_that_a_template_writes_must_have_a_name_and_an_id() {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path(), &expected().special, "");
    let chat = |template: &str, settings: serde_json::Value, map: &str| {
        fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        fs::write(folder.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
        fs::write(folder.path().join("special_tokens_map.json"), map).unwrap();
        rendered(folder.path())
    };
    let template = "{{ messages[0].content }}{{ eos_token }}";
    let error = chat(template, serde_json::json!({}), "{}").unwrap_err();
    let expected = "it writes `eos_token`, which tokenizer_config.json and special_tokens_map.json do not name";
    assert!(error.contains(expected), "{error}");
    let map = r#"{"eos_token": {"content": "</s>"}}"#;
    assert_eq!(chat(template, serde_json::json!({}), map).unwrap(), "a</s>");
    // A special token that the settings set to null is rendered as an empty text, even if the token map names it.
    assert_eq!(chat(template, serde_json::json!({"eos_token": null}), map).unwrap(), "a");
    let error = chat(template, serde_json::json!({"eos_token": "<gone>"}), "{}").unwrap_err();
    assert!(error.contains("it writes the token `<gone>`, which tokenizer_config.json or"), "{error}");
    let asks = "{% if eos_token is defined %}{{ eos_token }}{% endif %}{% if add_eos_token %}{% endif %}a";
    assert_eq!(chat(asks, serde_json::json!({}), "{}").unwrap(), "a");
    assert!(chat("a", serde_json::json!({}), "{").unwrap_err().contains("special_tokens_map.json cannot be read"));
    let settings = serde_json::json!({"added_tokens_decoder": {"7": {"content": "<|im_start|>"}}});
    assert!(chat("<|im_start|>a", settings.clone(), "{}").unwrap_err().contains("the token `<|im_start|>`"));
    assert_eq!(chat("b", settings, "{}").unwrap(), "b", "the template does not write it");
}

#[test]
fn json_has_the_given_separators_and_texts_and_dictionaries_are_sequences() {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(folder.path(), &expected().special, "");
    let text = |template: &str| {
        fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        rendered(folder.path())
    };
    // The expected texts are those of Python's `json.dumps` and Jinja2.
    assert_eq!(text("{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }}").unwrap(), r#"{"a":[1,2]}"#);
    assert_eq!(text("{{ {'a': [1, 2]} | tojson }}").unwrap(), r#"{"a": [1, 2]}"#);
    assert!(text("{{ [1] | tojson(separators=(',')) }}").is_err());
    assert_eq!(text("{{ [1e-5, 31.245270191439438] }} {{ 1e16 }}").unwrap(), "[1e-05, 31.245270191439438] 1e+16");
    assert_eq!(text("{{ (1e-5, x) }} {{ (1e16,) }}").unwrap(), "(1e-05, Undefined) (1e+16,)");
    assert_eq!(text("{{ 1e-5 | string }}{{ x | string }}{{ 'a' | string }}").unwrap(), "1e-05a");
    let doubled = "{% set ns = namespace(l='x') %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|string }}";
    assert!(text(doubled).unwrap_err().contains("too deep or too large to be printed"));
    let tests =
        "{{ 'ab' is sequence }} {{ {} is sequence }} {{ [] is sequence }} {{ 1 is sequence }} {{ none is sequence }}";
    assert_eq!(text(tests).unwrap(), "True True True False False");
}
