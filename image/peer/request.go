package peer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/reference"
)

// Paths of requests. The first is a POST with a question, the others GETs with the parameters
// repository and blob.
const (
	askPath   = "/v1/ask"
	blobPath  = "/v1/blob"
	layerPath = "/v1/layer"
)

const (
	maxBlobs    = 500      // of one question: overlayfs takes no more layers
	maxQuestion = 64 << 10 // bytes, also of an answer
	maxQuery    = 2 << 10
)

// question asks for the states of blobs that the asking node is pulling.
type question struct {
	Repository string          `json:"repository"`
	Blobs      []digest.Digest `json:"blobs"`
	// Wanted are those of them, by index, that it has not begun to fetch.
	Wanted []int `json:"wanted,omitempty"`
}

// answer has a state for each blob of the question, in order.
type answer struct {
	States []State `json:"states"`
	// Others are nodes that have asked for some of the blobs.
	Others []string `json:"others,omitempty"`
}

// parseQuestion reads what another node has sent.
func parseQuestion(data []byte) (q question, err error) {
	if len(data) > maxQuestion {
		return q, fmt.Errorf("question has more than %d bytes", maxQuestion)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&q); err != nil {
		return question{}, err
	}
	if len(q.Blobs) == 0 || len(q.Blobs) > maxBlobs || len(q.Wanted) > len(q.Blobs) {
		return question{}, fmt.Errorf("question has %d blobs, %d of them wanted: between 1 and %d are allowed",
			len(q.Blobs), len(q.Wanted), maxBlobs)
	}
	if err := checkRepository(q.Repository); err != nil {
		return question{}, err
	}
	for _, b := range q.Blobs {
		if err := reference.CheckDigest(b); err != nil {
			return question{}, err
		}
	}
	for _, i := range q.Wanted {
		if i < 0 || i >= len(q.Blobs) {
			return question{}, fmt.Errorf("no blob %d in the question", i)
		}
	}
	return q, nil
}

// parseTarget reads the parameters of a GET. Only the two, once each, are allowed.
func parseTarget(query string) (repository string, blob digest.Digest, err error) {
	if len(query) > maxQuery {
		return "", "", fmt.Errorf("query has more than %d bytes", maxQuery)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", "", err
	}
	r, b := values["repository"], values["blob"]
	if len(values) != 2 || len(r) != 1 || len(b) != 1 {
		return "", "", errors.New("query must have repository and blob, once each")
	}
	repository, blob = r[0], digest.Digest(b[0])
	if err := errors.Join(checkRepository(repository), reference.CheckDigest(blob)); err != nil {
		return "", "", err
	}
	return repository, blob, nil
}

// target is the query that parseTarget reads.
func target(repository string, blob digest.Digest) string {
	return url.Values{"repository": {repository}, "blob": {blob.String()}}.Encode()
}

// checkRepository refuses what is not the full name of a repository.
func checkRepository(name string) error {
	n, err := reference.Parse(name)
	if err != nil {
		return err
	}
	if n.Repo != name {
		return fmt.Errorf("%q is no repository's full name", name)
	}
	return nil
}
