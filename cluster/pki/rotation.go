package pki

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

// Rotation says what is to be made again although it is good. It is no list of steps: [Ensure]
// makes again what is older than the times here, so a rotation that was cut off is finished by the
// next Ensure, and one that is finished does nothing.
type Rotation struct {
	Version int `json:"version"`
	// Certificates that were made before this time are made again.
	Certificates time.Time `json:"certificates,omitzero"`
	// Authority is the same for the authorities, which get other keys. Former ones that were replaced
	// before DropFormer are not trusted any more.
	Authority  time.Time `json:"authority,omitzero"`
	DropFormer time.Time `json:"dropFormer,omitzero"`
	// ServiceAccountKey is the same for the key that signs service account tokens.
	ServiceAccountKey time.Time `json:"serviceAccountKey,omitzero"`
}

const (
	rotationVersion = 1
	// mostFormerKeys bounds how many keys the API server tries for a token.
	mostFormerKeys = 8
)

// What is what Rotate makes again.
type What struct {
	// Certificates are all but the authorities', which have a flag of their own.
	Certificates, Authority, ServiceAccountKey bool
	// DropFormer ends the trust in the former authorities.
	DropFormer bool
}

// Rotate notes that credentials in dir are to be made again. The next Ensure does it.
func Rotate(dir string, w What) error {
	now := time.Now()
	r, err := readRotation(dir, now)
	if err != nil {
		return err
	}
	// Certificates tell when they were made to the second, and those of this second are old.
	at := now.UTC().Truncate(time.Second).Add(time.Second)
	if last := r.latest(now); !last.Before(at) {
		at = last.UTC().Add(time.Second)
	}
	if w.Authority || w.DropFormer {
		s, err := ReadSuccession(dir)
		if err != nil {
			return err
		}
		// If it was dropped for the last rotation, what follows that may have failed.
		if dropped := !r.DropFormer.IsZero() && !r.DropFormer.Before(r.Authority); w.DropFormer && !s.Unfinished && !dropped {
			return errors.New("no authority is being replaced: 'coracle certificate rotate --authority' starts it")
		}
		if w.DropFormer {
			r.DropFormer = at
		} else if !s.Unfinished { // else it was noted before
			r.Authority = at
		}
	}
	if w.ServiceAccountKey {
		data, err := read(filepath.Join(dir, tokenKeyFile))
		if err != nil {
			return err
		}
		if k := decodeTokenKeys(data); len(k.former) >= mostFormerKeys {
			return fmt.Errorf("%d former keys of service account tokens still verify tokens: the next may follow after %s", len(k.former),
				k.former[len(k.former)-1].until.Local().Format(time.DateTime))
		}
		r.ServiceAccountKey = at
	}
	if w.Certificates {
		r.Certificates = at
	}
	r.Version = rotationVersion
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return Replace(rotationFile(dir), append(data, '\n'), 0o600)
}

// Holding are the credentials in a directory, by their files.
type Holding map[string]held

type held struct {
	what string // no other has the same
	made time.Time
}

// Hold returns what a rotation of certificates, or of the key of service account tokens, replaces.
func Hold(dir string, w What) (Holding, error) {
	h := Holding{}
	if w.Certificates {
		all, err := List(dir)
		if err != nil {
			return nil, err
		}
		for _, c := range all {
			if c.cert != nil && !c.cert.IsCA {
				h[c.File] = held{string(c.cert.Raw), c.Made}
			}
		}
	}
	if w.ServiceAccountKey {
		data, err := read(filepath.Join(dir, tokenKeyFile))
		if err != nil {
			return nil, err
		}
		if k := decodeTokenKeys(data); k.key != nil {
			der, err := marshalKey(k.key)
			if err != nil {
				return nil, err
			}
			h[tokenKeyFile] = held{string(der), k.made}
		}
	}
	return h, nil
}

// Kept returns the files in which now still has what h has, although a rotation was noted at a
// time: all of them, or those that seem to be younger than the rotation. Others may be no files of
// [Ensure].
func (h Holding) Kept(now Holding, noted time.Time) (files []string) {
	for file, before := range h {
		if now[file].what == before.what {
			files = append(files, file)
		}
	}
	if len(files) < len(h) {
		files = slices.DeleteFunc(files, func(file string) bool { return h[file].made.Before(noted) })
	}
	slices.Sort(files)
	return files
}

// Succession is the cluster's authority in a directory, and the one that it replaced.
type Succession struct {
	// PEM has the authorities to trust, the newest first, and what the former one certifies.
	PEM []byte
	// Newest is the first of them.
	Newest *x509.Certificate
	// Unfinished is whether a former one is trusted, too.
	Unfinished bool
}

// ReadSuccession returns what the directory has.
func ReadSuccession(dir string) (s Succession, err error) {
	path := filepath.Join(dir, authorityFile)
	data, err := read(path)
	if err != nil {
		return s, err
	}
	a := decodeAuthority(data)
	if !a.whole() {
		return s, fmt.Errorf("pki: %s has no authority", path)
	}
	return Succession{append(a.trusted(), a.chain()...), a.cert, a.former != nil}, nil
}

func rotationFile(dir string) string { return filepath.Join(dir, "rotation.json") }

func readRotation(dir string, now time.Time) (r Rotation, err error) {
	data, err := read(rotationFile(dir))
	if err != nil || data == nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Rotation{}, fmt.Errorf("pki: %s is damaged: %w; remove it to forget a rotation that is not finished", rotationFile(dir), err)
	}
	if r.Version != rotationVersion {
		return Rotation{}, fmt.Errorf("pki: %s has format %d, and this version knows %d", rotationFile(dir), r.Version, rotationVersion)
	}
	for _, at := range []*time.Time{&r.Certificates, &r.Authority, &r.DropFormer, &r.ServiceAccountKey} {
		if at.After(now.Add(soon)) { // all would be older, again and again
			*at = time.Time{}
		}
	}
	return r, nil
}

// soon is how far ahead of the clock a rotation may be: a second for each of those that follow one
// another quickly. One that is further ahead was noted with a clock that was wrong.
const soon = time.Minute

// latest is the time of what is made now: a rotation is noted for a moment later.
func (r Rotation) latest(now time.Time) time.Time {
	for _, at := range []time.Time{r.Certificates, r.Authority, r.DropFormer, r.ServiceAccountKey} {
		if at.After(now) {
			now = at
		}
	}
	return now
}

// earliest is the first of times that are not zero.
func earliest(all ...time.Time) (first time.Time) {
	for _, t := range all {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
