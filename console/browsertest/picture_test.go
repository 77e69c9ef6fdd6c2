package browsertest

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestPicture is the page as docs/console.md shows it, which make images has it write to the file PICTURE.
func TestPicture(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, nil)
	for _, key := range []string{"order:42", "order:43"} {
		w.lock(t, key, redlock.WithLabel(label))
	}
	w.lock(t, "job:invoices", redlock.WithLabel("cron"))
	w.wait(t, "order:42", 2)
	w.waitElsewhere(t, "web2/1717", "order:42")
	b := open(t, w.url)
	b.awaitText("All 3 masters are available")
	b.await("two calls wait", "main.dataset.waiting == '2'")
	b.awaitText("web2/1717")
	b.run(send(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1000, Height: 500, DeviceScaleFactor: 1}), scheme("light"))
	picture, err := png.Decode(bytes.NewReader(get(b, chromedp.FullScreenshot(100))))
	if err != nil {
		t.Fatal(err)
	}
	if file := os.Getenv("PICTURE"); file != "" {
		var text bytes.Buffer
		if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&text, paletted(picture)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// paletted returns the picture in the 256 colors that it has most of, which makes it a third as large.
func paletted(picture image.Image) image.Image {
	bounds, pixels := picture.Bounds(), make(map[color.Color]int)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			pixels[picture.At(x, y)]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(pixels), func(a, b color.Color) int { return cmp.Compare(pixels[b], pixels[a]) })
	result := image.NewPaletted(bounds, colors[:min(256, len(colors))])
	draw.Draw(result, bounds, picture, bounds.Min, draw.Src)
	return result
}
