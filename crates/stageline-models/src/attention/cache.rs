//! The KV cache for text generation: the attention keys and values of earlier positions, stored by each block
//! ([`KeyValueCache`]).

use std::sync::Arc;

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, DType, Device, FloatDType, Int, Tensor};
use parking_lot::Mutex;
use stageline::SharedInput;
use stageline::nn::{AttentionHeads, causal_attention, causal_attention_within};

use crate::attention::{DocumentStarts, Scope};

/// The state of a model's text generation: the current text and the position in it, shared by all pipelines of the
/// model. [`Generation`](crate::Generation) manages it; callers need not use it.
///
/// An input that continues the generated text carries a mark in place of the document starts: a tensor with one column
/// more than the input has tokens. The first layer recognises it, and passes the text and the position to the blocks
/// ([`Scope::Generated`]), which attend to the keys and values of earlier marked inputs, and store the new ones.
///
/// Without the mark, blocks attend within each sample or document, as in training, so other pipelines of the model may
/// run between two generated tokens. The position must not change while a marked input is processed, because the first
/// layer reads it on its own thread.
#[derive(Clone, Debug, Default)]
pub struct KeyValueCache(Arc<Mutex<Generated>>);

/// The state of a model's text generation, which all pipelines of the model share.
#[derive(Debug, Default)]
struct Generated {
    /// Number of tokens of the current text, prompt included, that the model's blocks have processed; `None` while no
    /// text is generated.
    position: Option<usize>,
    /// Number of texts begun so far, which identifies the current text. A block ignores keys and values that it stored
    /// for an earlier text.
    text: u64,
}

/// The KV cache of one transformer block: the attention keys and values of the generated text's earlier positions.
#[derive(Clone, Debug, Default)]
pub struct BlockCache(Arc<Mutex<Option<Kept>>>);

/// The attention keys and values of one text's earlier positions, for one transformer block.
#[derive(Debug)]
struct Kept {
    text: u64,
    /// The attention keys of all earlier positions, `[batch, positions, key-value heads x head size]`. In a model with
    /// a rotary embedding, they are stored after the rotation.
    keys: Tensor<3>,
    values: Tensor<3>,
}

impl KeyValueCache {
    /// Begins the generation of a new text and returns true. If the model already generates a text, does nothing and
    /// returns false.
    pub(crate) fn begin(&self) -> bool {
        let mut generated = self.0.lock();
        if generated.position.is_some() {
            return false;
        }
        generated.position = Some(0);
        generated.text += 1;
        true
    }

    /// Advances the position in the generated text by `count` tokens, after the pipeline has processed them. Does
    /// nothing if no text is generated.
    pub(crate) fn advance(&self, count: usize) {
        let mut generated = self.0.lock();
        generated.position = generated.position.map(|position| position + count);
    }

    /// Ends the generation of the current text. Each block frees its stored keys and values in its next forward pass.
    pub(crate) fn end(&self) {
        self.0.lock().position = None;
    }

    /// Returns the mark for an input of `length` tokens that continues the generated text: a tensor of a special shape
    /// that takes the place of the document starts. [`scope`](Self::scope) recognises it.
    pub(crate) fn continued_by(length: usize) -> DocumentStarts {
        // Inputs consist of tensors only (the batch type of `stageline-train`), so the mark is a tensor whose shape no
        // document starts have. Recognising it needs no read from a device.
        SharedInput::new(Tensor::zeros([1, length + 1], &Device::flex()))
    }

    /// Returns the attention scope of an input of `length` tokens. `starts` holds the document starts, `None` if every
    /// sample is one document, or the mark of [`continued_by`](Self::continued_by) if the input continues a generated
    /// text.
    ///
    /// # Panics
    /// Panics if `starts` does not have one entry per token, unless it is the mark and a text is being generated.
    pub(crate) fn scope(&self, length: usize, starts: Option<DocumentStarts>) -> Scope {
        let Some(starts) = starts else { return Scope::Sample };
        let [_, columns] = starts.get().dims();
        let Generated { position, text } = *self.0.lock();
        match position {
            Some(position) if columns == length + 1 => Scope::Generated { text, position },
            _ => {
                assert!(
                    columns == length,
                    "the starts of documents have {columns} columns, and the tokens {length}; give equally many"
                );
                Scope::Documents(starts)
            }
        }
    }
}

impl Kept {
    /// Whether an input with the attention scope `scope` continues the text that these stored keys and values belong
    /// to.
    fn is_continued_by(&self, scope: &Scope) -> bool {
        matches!(scope, Scope::Generated { text, position } if *text == self.text && *position > 0)
    }
}

impl BlockCache {
    /// Computes a transformer block's causal self-attention. The input `[batch, length, columns]` has the queries, keys
    /// and values of all heads side by side. The output is `[batch, length, query heads x head size]`.
    ///
    /// `scope` decides to which positions a query attends:
    ///
    /// - In training and evaluation: to the earlier positions of its own sample or document.
    /// - If the input continues a generated text: to all earlier positions of this text, using the stored keys and
    ///   values. The keys and values of the new input are stored too.
    ///
    /// # Panics
    /// Panics if the input continues a generated text, but the block has not stored exactly the text's earlier
    /// positions.
    pub(crate) fn attend(&self, query_key_value: Tensor<3>, heads: AttentionHeads, scope: Scope) -> Tensor<3> {
        let before = self.0.lock().take().filter(|kept| kept.is_continued_by(&scope));
        let (text, position) = match scope {
            Scope::Sample => return causal_attention(query_key_value, heads),
            Scope::Documents(starts) => return causal_attention_within(query_key_value, heads, starts.get()),
            Scope::Generated { text, position } => (text, position),
        };
        let known = before.as_ref().map_or(0, |kept| kept.keys.dims()[1]);
        assert!(
            known == position,
            "a block has kept {known} positions of the generated text, which has {position}: its layers ran outside of \
             the generation; generate with a pipeline whose layers nothing else uses"
        );
        let size = query_key_value.dims()[2] / (heads.query + 2 * heads.key_value);
        let [of_queries, of_keys] = [heads.query, heads.key_value].map(|heads| heads * size);
        let part = |start: usize, count: usize| query_key_value.clone().slice_dim(2, start..start + count);
        let (keys, values) = (part(of_queries, of_keys), part(of_queries + of_keys, of_keys));
        let (keys, values) = match before {
            Some(before) => (Tensor::cat(vec![before.keys, keys], 1), Tensor::cat(vec![before.values, values], 1)),
            None => (keys, values),
        };
        *self.0.lock() = Some(Kept { text, keys: keys.clone(), values: values.clone() });
        match position {
            0 => causal_attention(query_key_value, heads),
            _ => continued(part(0, of_queries), keys, values, heads),
        }
    }
}

/// Computes causal attention for the last `new` positions of a text, such as a newly generated token. Queries and
/// output are `[batch, new, query heads x head size]`. Keys and values cover all positions, `[batch, positions,
/// key-value heads x head size]`.
///
/// Inputs in bf16 or f16 are computed in f32, and the output is cast back to their dtype.
fn continued(queries: Tensor<3>, keys: Tensor<3>, values: Tensor<3>, heads: AttentionHeads) -> Tensor<3> {
    if matches!(queries.dtype(), DType::BF16 | DType::F16) {
        // In half precision, scores would overflow or lose precision before the softmax.
        let given = FloatDType::from(queries.dtype());
        let [queries, keys, values] = [queries, keys, values].map(|input| input.cast(FloatDType::F32));
        return continued(queries, keys, values, heads).cast(given);
    }
    let ([batch, new, width], [_, positions, _]) = (queries.dims(), keys.dims());
    let (size, group) = (width / heads.query, heads.query / heads.key_value);
    let device = queries.device();
    let queries = queries.reshape([batch, new, heads.key_value, group, size]).permute([0, 2, 3, 1, 4]);
    let of_heads = |all: Tensor<3>| all.reshape([batch, positions, heads.key_value, 1, size]).permute([0, 2, 3, 1, 4]);
    let scores = queries.matmul(of_heads(keys).swap_dims(3, 4)) / (size as f64).sqrt();
    // Distance in positions from each query (row) to each key (column).
    let of_queries = Tensor::<1, Int>::arange((positions - new) as i64..positions as i64, &device);
    let of_keys = Tensor::<1, Int>::arange(0..positions as i64, &device);
    let shape = [new, positions];
    let distance = of_queries.reshape([new, 1]).expand(shape) - of_keys.reshape([1, positions]).expand(shape);
    let future: Tensor<2, Bool> = distance.clone().lower_elem(0);
    let hidden = match heads.window {
        Some(window) => future.bool_or(distance.greater_equal_elem(window as i64)),
        None => future,
    };
    let hidden = hidden.unsqueeze::<5>().expand(scores.shape());
    let weights = softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 4);
    weights.matmul(of_heads(values)).permute([0, 3, 1, 2, 4]).reshape([batch, new, width])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests attention in half precision. The two scores must not be rounded to bf16, in which they would be equal, and
    /// must not overflow in f16.
    #[test]
    fn new_tokens_in_half_precision_have_the_attention_of_f32() {
        let heads = AttentionHeads { query: 1, key_value: 1, window: None };
        let tensor = |rows: &[f32]| {
            let rows = Tensor::<1>::from_floats(rows, &Device::flex());
            let [count] = rows.dims();
            rows.reshape([1, count / 4, 4])
        };
        for (dtype, first, larger) in [(FloatDType::BF16, 16.0, 16.125), (FloatDType::F16, 200.0, 200.125)] {
            let queries = tensor(&[first; 4]);
            let keys = tensor(&[[first; 4], [first, first, first, larger]].concat());
            let values = tensor(&[[0.0; 4], [1.0; 4]].concat());
            let exact = continued(queries.clone(), keys.clone(), values.clone(), heads);
            let half = continued(queries.cast(dtype), keys.cast(dtype), values.cast(dtype), heads);
            assert_eq!(FloatDType::from(half.dtype()), dtype);
            let apart = (half.cast(FloatDType::F32) - exact).abs().max().into_scalar::<f32>();
            assert!(apart < 0.01, "{dtype:?}: {apart}");
        }
    }

    fn starts(columns: usize) -> Option<DocumentStarts> {
        Some(SharedInput::new(Tensor::zeros([1, columns], &Device::flex())))
    }

    #[test]
    fn an_input_continues_a_text_only_if_it_is_marked_and_a_text_is_generated() {
        let cache = KeyValueCache::default();
        let marked = |length| cache.scope(length, Some(KeyValueCache::continued_by(length)));
        for text in [1, 2] {
            assert!(cache.begin());
            assert!(!cache.begin());
            for (length, position) in [(3, 0), (1, 3), (1, 4)] {
                let found = marked(length);
                assert!(matches!(found, Scope::Generated { text: of, position: at } if (of, at) == (text, position)));
                assert_eq!(found.position(), position);
                let other = [cache.scope(length, None), cache.scope(length, starts(length))];
                assert!(matches!(other, [Scope::Sample, Scope::Documents(_)]), "{other:?}");
                assert_eq!(other.map(|scope| scope.position()), [0, 0]);
                cache.advance(length);
            }
            cache.end();
        }
    }

    #[test]
    #[should_panic(expected = "the starts of documents have 4 columns, and the tokens 3; give equally many")]
    fn a_marked_input_is_refused_while_no_text_is_generated() {
        drop(KeyValueCache::default().scope(3, Some(KeyValueCache::continued_by(3))));
    }

    #[test]
    #[should_panic(expected = "the starts of documents have 2 columns, and the tokens 3; give equally many")]
    fn starts_of_a_wrong_length_are_refused_while_a_text_is_generated() {
        let cache = KeyValueCache::default();
        assert!(cache.begin());
        drop(cache.scope(3, starts(2)));
    }
}
