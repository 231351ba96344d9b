"""Pictures: arrays, products, mapped functions, charts and tori, as SVG."""
