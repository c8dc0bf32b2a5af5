package pki

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"
)

// Rotation says what is to be made again although it is good. It is no list of steps: [Ensure]
// makes again what is older than the times here, so a rotation that was cut off is finished by the
// next Ensure, and one that is finished does nothing.
type Rotation struct {
	Version int `json:"version"`
	// Certificates that were made before this time are made again.
	Certificates time.Time `json:"certificates,omitzero"`
	// Authority is the same for the authorities, which get other keys. The former ones are trusted
	// for as long as TrustFormer says.
	Authority   time.Time     `json:"authority,omitzero"`
	TrustFormer time.Duration `json:"trustFormerNanoseconds,omitempty"`
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
	// TrustFormer is how long the former authorities are trusted. Nodes and pods have to learn of
	// the new one in that time.
	TrustFormer time.Duration
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
	if w.Authority {
		if w.TrustFormer < 0 {
			return fmt.Errorf("an authority cannot be trusted for %s: choose a time from 0 on", w.TrustFormer)
		}
		data, err := read(filepath.Join(dir, "ca.pem"))
		if err != nil {
			return err
		}
		if a := decodeAuthority(data); a.former != nil && now.Before(a.former.until) {
			return fmt.Errorf("the authority was replaced on %s, and the one before is trusted until %s: only then it can be replaced again",
				madeAt(a.cert).Local().Format(time.DateTime), a.former.until.Local().Format(time.DateTime))
		}
		r.Authority, r.TrustFormer = at, w.TrustFormer
	}
	if w.ServiceAccountKey {
		data, err := read(filepath.Join(dir, "service-account.pem"))
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
	for _, at := range []*time.Time{&r.Certificates, &r.Authority, &r.ServiceAccountKey} {
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
	for _, at := range []time.Time{r.Certificates, r.Authority, r.ServiceAccountKey} {
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
