//! The keys and values of earlier positions, which the blocks of a model keep while a text is generated
//! ([`KeyValueCache`]).

use std::sync::Arc;

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Int, Tensor};
use parking_lot::Mutex;
use stageline::SharedInput;
use stageline::nn::{AttentionHeads, causal_attention, causal_attention_within};

/// The position of the text that a model generates, which all blocks of all pipelines of the model share.
///
/// An input that continues the text is marked: a block attends to the keys and values that it has kept from earlier
/// marked inputs, and keeps those of the new one. For any other input, blocks attend within each sample, as in
/// training. So other pipelines of the model may run between two generated tokens. The blocks of a pipeline read the
/// position from their own threads, so it must not change during an inference on a marked input.
#[derive(Clone, Debug, Default)]
pub struct KeyValueCache(Arc<Mutex<Generated>>);

/// The state of a model's key-value cache during the generation of a text, which all blocks of the model share.
#[derive(Debug, Default)]
struct Generated {
    /// The number of tokens of the generated text that the model's blocks have processed so far, prompt included;
    /// `None` while the model generates no text.
    position: Option<usize>,
    /// The number of texts that the model has begun to generate. If the number has changed, a block's kept keys and
    /// values belong to an earlier text.
    text: u64,
}

/// The key-value cache of one transformer block. It keeps the attention keys and values of earlier inputs of the text
/// that the model generates.
#[derive(Clone, Debug)]
pub struct BlockCache {
    model: KeyValueCache,
    kept: Arc<Mutex<Option<Kept>>>,
}

/// The attention keys and values that one transformer block has kept of all earlier positions of one text.
#[derive(Debug)]
struct Kept {
    text: u64,
    /// The keys that a block has kept of all earlier positions of a text, `[batch, positions, key-value heads x head
    /// size]`. If the model has a rotary embedding, the keys are stored rotated.
    keys: Tensor<3>,
    values: Tensor<3>,
}

impl KeyValueCache {
    /// Begins the generation of a new text with the model, and returns true. If the model already generates another
    /// text, does nothing and returns false.
    pub(crate) fn begin(&self) -> bool {
        let mut generated = self.0.lock();
        if generated.position.is_some() {
            return false;
        }
        generated.position = Some(0);
        generated.text += 1;
        true
    }

    /// Advances the position of a model's key-value cache in the text by `count` tokens, after an inference on that
    /// many tokens. Does nothing if no text is generated.
    pub(crate) fn advance(&self, count: usize) {
        let mut generated = self.0.lock();
        generated.position = generated.position.map(|position| position + count);
    }

    /// Ends the generation of the text. Each block frees its kept keys and values in its next forward.
    pub(crate) fn end(&self) {
        self.0.lock().position = None;
    }

    /// Returns the tensor that marks an input of `length` tokens as a continuation of the generated text. The tensor
    /// goes with the token ids of the input, in place of the starts of documents. The mark is the tensor's shape `[1,
    /// length + 1]`, so blocks need not read its values from a device: starts of documents have only `length` columns.
    pub(crate) fn continued_by(length: usize) -> SharedInput<Tensor<2, Int>> {
        SharedInput::new(Tensor::zeros([1, length + 1], &Device::flex()))
    }

    /// Returns the position of the first token of an input of `length` tokens. If the input continues the generated
    /// text, this is the number of tokens of the text that were processed before; otherwise it is 0. `starts` is the
    /// tensor that goes with the token ids of the input: the starts of documents, or the mark of such a continuation.
    pub(crate) fn position(&self, length: usize, starts: Option<&Tensor<2, Int>>) -> usize {
        if is_continued(length, starts) { self.0.lock().position.unwrap_or(0) } else { 0 }
    }

    /// Returns a new, empty key-value cache for one block.
    pub(crate) fn block(&self) -> BlockCache {
        BlockCache { model: self.clone(), kept: Arc::default() }
    }
}

impl BlockCache {
    /// Returns the position of the first token of an input of `length` tokens: the number of tokens of the generated
    /// text that were processed before if the input continues this text, and otherwise 0 (see
    /// [`KeyValueCache::position`]).
    pub(crate) fn position(&self, length: usize, starts: Option<&Tensor<2, Int>>) -> usize {
        self.model.position(length, starts)
    }

    /// Computes the causal self-attention of a transformer block. The input `[batch, length, columns]` has the queries,
    /// keys and values of all heads side by side; the output is `[batch, length, query heads x head size]`.
    ///
    /// `starts` is the tensor that goes with the token ids of the model's input. If it has the position at which each
    /// token's document begins, queries attend within their documents only. If it marks an input that continues the
    /// generated text, queries also attend to the kept keys and values of earlier inputs, and the new keys and values
    /// are kept.
    ///
    /// # Panics
    /// Panics on an input that continues the generated text if no text is generated, or if the block's kept keys and
    /// values are not those of all earlier positions of the text.
    pub(crate) fn attend(
        &self,
        query_key_value: Tensor<3>,
        heads: AttentionHeads,
        starts: Option<Tensor<2, Int>>,
    ) -> Tensor<3> {
        let length = query_key_value.dims()[1];
        if !is_continued(length, starts.as_ref()) {
            self.kept.lock().take();
            return match starts {
                Some(starts) => causal_attention_within(query_key_value, heads, starts),
                None => causal_attention(query_key_value, heads),
            };
        }
        let (position, text) = {
            let generated = self.model.0.lock();
            (generated.position, generated.text)
        };
        let position = position.unwrap_or_else(|| {
            panic!("the starts of documents have {} columns, and the tokens {length}; give equally many", length + 1)
        });
        let size = query_key_value.dims()[2] / (heads.query + 2 * heads.key_value);
        let [of_queries, of_keys] = [heads.query, heads.key_value].map(|heads| heads * size);
        let part = |start: usize, count: usize| query_key_value.clone().slice_dim(2, start..start + count);
        let (keys, values) = (part(of_queries, of_keys), part(of_queries + of_keys, of_keys));
        let mut kept = self.kept.lock();
        let before = kept.take().filter(|kept| kept.text == text && position > 0);
        let known = before.as_ref().map_or(0, |kept| kept.keys.dims()[1]);
        assert!(
            known == position,
            "a block has kept {known} positions of the generated text, which has {position}: its layers ran outside of \
             the generation; generate with a pipeline whose layers nothing else uses"
        );
        let (keys, values) = match before {
            Some(before) => (Tensor::cat(vec![before.keys, keys], 1), Tensor::cat(vec![before.values, values], 1)),
            None => (keys, values),
        };
        *kept = Some(Kept { text, keys: keys.clone(), values: values.clone() });
        drop(kept);
        match position {
            0 => causal_attention(query_key_value, heads),
            _ => continued(part(0, of_queries), keys, values, heads),
        }
    }
}

/// Whether an input of `length` tokens continues the generated text. `starts`, the tensor that goes with the token ids
/// of the input, then has `length + 1` columns.
pub(crate) fn is_continued(length: usize, starts: Option<&Tensor<2, Int>>) -> bool {
    starts.is_some_and(|starts| starts.dims()[1] == length + 1)
}

/// Computes causal attention for the newest positions of a text. The queries, and the output, are `[batch, new, query
/// heads x head size]` for the last `new` positions. The keys and values are `[batch, positions, key-value heads x head
/// size]` for all positions.
fn continued(queries: Tensor<3>, keys: Tensor<3>, values: Tensor<3>, heads: AttentionHeads) -> Tensor<3> {
    let ([batch, new, width], [_, positions, _]) = (queries.dims(), keys.dims());
    let (size, group) = (width / heads.query, heads.query / heads.key_value);
    let device = queries.device();
    let queries = queries.reshape([batch, new, heads.key_value, group, size]).permute([0, 2, 3, 1, 4]);
    let of_heads = |all: Tensor<3>| all.reshape([batch, positions, heads.key_value, 1, size]).permute([0, 2, 3, 1, 4]);
    let scores = queries.matmul(of_heads(keys).swap_dims(3, 4)) / (size as f64).sqrt();
    // The distance of each query (row) from each key (column), in positions.
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
