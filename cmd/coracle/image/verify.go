package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
	"github.com/coracle-project/coracle/cmd/coracle/output"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// verification is the answer of verify.
type verification struct {
	Documents    int64     `json:"documents"`
	Blobs        int64     `json:"blobs"`
	Layers       int64     `json:"layers"`
	Damaged      []damage  `json:"damaged"`
	Unverifiable []string  `json:"unverifiable"`
	Fetched      []string  `json:"fetched"`
	Dropped      []dropped `json:"dropped"`
}

type damage struct {
	Kind    string   `json:"kind"`
	Digest  string   `json:"digest"`
	Problem string   `json:"problem"`
	Images  []string `json:"images"`
}

type dropped struct {
	Image  string `json:"image"`
	Reason string `json:"reason,omitempty"`
}

func (i *images) verifyCommand() *cobra.Command {
	var format output.Format
	var creds credentials
	var repair string
	cmd := &cobra.Command{
		Use:   "verify [IMAGE...]",
		Short: "verify the data of images against their digests, and repair it",
		Long: `Read all data of images (of all images, if none is named) and compare it with its
digests. To verify unpacked layers, their archives are created again. verify exits with
1 if something is damaged and was not repaired.

  --repair drop     stops using damaged data, and removes the images that need it
  --repair fetch    pulls these images again; only damaged data is fetched

Containers that run from a damaged layer keep using it. With --username, all images must be of
one registry.`,
		Example: `  coracle image verify
  coracle image verify --repair fetch
  coracle image verify registry.example/app:2 -o json`,
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := creds.read(cmd.InOrStdin())
			if err != nil {
				return err
			}
			how, ok := map[string]imagesv1.Repair{
				"none": imagesv1.Repair_REPAIR_NONE, "drop": imagesv1.Repair_REPAIR_DROP, "fetch": imagesv1.Repair_REPAIR_FETCH,
			}[repair]
			if !ok {
				return fmt.Errorf("--repair %s: it is none, drop or fetch", repair)
			}
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				s, err := c.Verify(ctx, &imagesv1.VerifyRequest{Images: args, Repair: how, Credentials: k})
				if err != nil {
					return err
				}
				v, err := followVerify(s, bar.NewCount(cmd.ErrOrStderr(), "verify"))
				if err != nil {
					return err
				}
				if err := format.Print(cmd.OutOrStdout(), v, v.rows); err != nil {
					return err
				}
				return v.verdict(how)
			})
		},
	}
	cmd.Flags().StringVar(&repair, "repair", "none", "none, drop or fetch")
	_ = cmd.RegisterFlagCompletionFunc("repair", cobra.FixedCompletions([]string{"none", "drop", "fetch"}, cobra.ShellCompDirectiveNoFileComp))
	creds.define(cmd)
	format.Define(cmd)
	return cmd
}

// followVerify shows what is read, and returns the result.
func followVerify(s imagesv1.Images_VerifyClient, n *bar.Count) (*verification, error) {
	defer n.Abort()
	var v *verification
	for {
		m, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF) && v != nil:
			return v, nil
		case err != nil:
			return nil, err
		case m.GetResult() != nil:
			v = verificationOf(m.GetResult())
		default:
			n.Next(m.GetKind() + " " + short(m.GetDigest()))
		}
	}
}

func verificationOf(r *imagesv1.VerifyResult) *verification {
	v := &verification{
		Documents: r.GetDocuments(), Blobs: r.GetBlobs(), Layers: r.GetLayers(), Damaged: []damage{},
		Unverifiable: orEmpty(r.GetUnverifiable()), Fetched: orEmpty(r.GetFetched()), Dropped: []dropped{},
	}
	for _, d := range r.GetDamaged() {
		v.Damaged = append(v.Damaged, damage{d.GetKind(), d.GetDigest(), d.GetProblem(), orEmpty(d.GetImages())})
	}
	for _, d := range r.GetDropped() {
		v.Dropped = append(v.Dropped, dropped{d.GetImage(), d.GetReason()})
	}
	return v
}

func (v *verification) rows(w io.Writer) {
	for _, d := range v.Damaged {
		output.Row(w, "damaged", d.Kind, short(d.Digest), strings.Join(d.Images, ", "), d.Problem)
	}
	for _, d := range v.Unverifiable {
		output.Row(w, "unknown", "layer", short(d), "", "neither its blob nor the recipe of its archive was kept")
	}
	for _, name := range v.Fetched {
		output.Row(w, "fetched", "image", "", name, "")
	}
	for _, d := range v.Dropped {
		output.Row(w, "dropped", "image", "", d.Image, d.Reason)
	}
	_, _ = fmt.Fprintf(w, "whole: %d documents, %d blobs, %d layers\n", v.Documents, v.Blobs, v.Layers)
}

// verdict is an error if there is damage that was not repaired.
func (v *verification) verdict(how imagesv1.Repair) error {
	switch {
	case len(v.Damaged) == 0:
		return nil
	case how == imagesv1.Repair_REPAIR_NONE:
		return fmt.Errorf("%d damaged; 'coracle image verify --repair fetch' pulls the images again", len(v.Damaged))
	case how == imagesv1.Repair_REPAIR_FETCH && len(v.Dropped) > 0:
		return fmt.Errorf("%d images could not be pulled again and are gone", len(v.Dropped))
	}
	return nil
}
